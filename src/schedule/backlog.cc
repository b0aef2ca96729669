#include "schedule/backlog.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "schedule/scheduling_policy.h"

namespace kvasir {
namespace {

using Job = Backlog::Job;

// The steps to come, as the fair policy plans them. Times are from the begin of the step that runs.
class Forecast {
 public:
  Forecast(const Backlog& backlog, std::span<const Job> arrivals, uint64_t now_ns)
      : backlog_(backlog),
        now_ns_(static_cast<double>(now_ns - std::min(now_ns, backlog.step_begin_ns))) {
    for (const Backlog::Tenant& tenant : backlog.tenants) tenants_.push_back({tenant.charge_ns});
    for (const Job& job : backlog.running) Start({job});
    const uint32_t tenant = arrivals.back().tenant;
    const auto is_its = [&](const Job& job) { return job.tenant == tenant; };
    unseen_ = backlog.tenants[tenant].waiting -
              static_cast<double>(std::ranges::count_if(backlog.waiting, is_its));
    for (const Job& job : backlog.waiting) waiting_.push_back({job});
    if (!running_.empty()) Step(1);  // it has begun, without the arrivals
    at_ns_ = std::max(at_ns_, now_ns_);
    for (const Job& job : arrivals) {
      Activate(job.tenant);
      waiting_.push_back({job});
    }
    waiting_.back().is_asked = true;
    double& new_tokens = waiting_.back().job.new_tokens;
    new_tokens = std::max(new_tokens, 1.0);  // a Cursor may save even that
  }

  // Returns the estimate of the last arrival.
  WaitEstimate Play() {
    const Job asked = waiting_.back().job;
    while (!Admit()) {
      if (running_.empty()) return From(at_ns_, at_ns_);  // it has more choices than may run
      if (starts_ >= kPlayedStarts) {
        const double pace_ns = (at_ns_ - now_ns_) / std::max(tenants_[asked.tenant].starts, 1u);
        const auto is_its = [&](const Run& run) { return run.job.tenant == asked.tenant; };
        const auto ahead = static_cast<double>(std::ranges::count_if(waiting_, is_its)) + unseen_;
        const double start_ns = at_ns_ + pace_ns * ahead;
        return From(start_ns, start_ns + asked.new_tokens * backlog_.RowNs());
      }
      Step();
    }
    const double start_ns = at_ns_;
    while (!Step()) {
    }
    return From(start_ns, at_ns_);
  }

 private:
  struct Run {
    Job job;
    bool is_asked = false;
  };
  struct Tenant {
    double charge_ns = 0;
    uint32_t choices = 0;  // that run
    uint32_t starts = 0;
  };

  WaitEstimate From(double start_ns, double first_token_ns) const {
    return {.start_ns = start_ns - now_ns_,
            .first_token_ns = first_token_ns - now_ns_,
            .rounds = rounds_};
  }

  void Start(const Run& run) {
    running_.push_back(run);
    choices_ += run.job.choices;
    tenants_[run.job.tenant].choices += run.job.choices;
  }

  void End(size_t i) {
    choices_ -= running_[i].job.choices;
    tenants_[running_[i].job.tenant].choices -= running_[i].job.choices;
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
  }

  // Raises the tenant's charge as TenantBook::Activate does.
  void Activate(uint32_t tenant) {
    std::optional<double> least;
    const auto look = [&](const Run& run) {
      const double charge = tenants_[run.job.tenant].charge_ns;
      least = std::min(least.value_or(charge), charge);
      return run.job.tenant == tenant;
    };
    if (std::ranges::any_of(running_, look) || std::ranges::any_of(waiting_, look)) return;
    double& charge = tenants_[tenant].charge_ns;
    charge = std::max(charge, least.value_or(charge));
  }

  // Starts those that have a place. Whether the one that is asked for is among them.
  bool Admit() {
    while (true) {
      std::optional<size_t> next;
      for (size_t i = 0; i < waiting_.size(); ++i) {
        const Job& job = waiting_[i].job;
        const Tenant& tenant = tenants_[job.tenant];
        const uint32_t most = backlog_.tenants[job.tenant].max_running;
        if (tenant.choices > 0 && uint64_t{tenant.choices} + job.choices > most) continue;
        if (!next || tenant.charge_ns < tenants_[waiting_[*next].job.tenant].charge_ns) next = i;
      }
      if (!next || choices_ + waiting_[*next].job.choices > backlog_.parallel) return false;
      const Run run = waiting_[*next];
      waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(*next));
      Start(run);
      ++starts_;
      ++tenants_[run.job.tenant].starts;
      if (run.is_asked) return true;
    }
  }

  // Returns prompts that are not done, in the order in which they get rows.
  std::vector<size_t> Prompts() const {
    std::vector<size_t> prompts;
    for (size_t i = 0; i < running_.size(); ++i) {
      if (running_[i].job.new_tokens > 0) prompts.push_back(i);
    }
    std::ranges::stable_sort(prompts, {},
                             [&](size_t i) { return tenants_[running_[i].job.tenant].charge_ns; });
    return prompts;
  }

  // The cost of one step, except for prompts; and how many steps pass until an answer ends.
  struct Decoding {
    StepWork work;
    double ends = 0;  // of answers of unknown length, a step
    double steps = std::numeric_limits<double>::infinity();
  };
  Decoding Answers() const {
    Decoding answers;
    for (const auto& [job, asked] : running_) {
      if (job.new_tokens > 0) continue;
      answers.work.decode_rows += job.choices;
      answers.work.decode_kv_bytes += job.choices * job.answer_row_bytes;
      if (job.ends_there) {
        answers.steps = std::min(answers.steps, job.answer_tokens);
      } else {
        answers.ends += job.choices / std::max(job.answer_tokens, 1.0);
      }
    }
    if (answers.ends > 0) answers.steps = std::min(answers.steps, (1 - ended_) / answers.ends);
    return answers;
  }

  // Runs steps of equal work, until a prompt or an answer ends. Returns whether the one that is
  // asked for has its first token then. REQUIRES: something runs.
  bool Step(double most_steps = std::numeric_limits<double>::infinity()) {
    ++rounds_;
    auto [work, ends, steps] = Answers();
    steps = std::min(steps, most_steps);
    const std::vector<size_t> prompts = Prompts();
    std::vector<double> rows(prompts.size());
    if (!prompts.empty()) {
      const Job& first = running_[prompts[0]].job;
      const uint32_t most = backlog_.max_rows - std::min(backlog_.max_rows, work.decode_rows);
      double left = RowsWithin(backlog_.cost, backlog_.target_step_ns, work, std::max(most, 1u),
                               first.prompt_row_bytes);
      steps = std::min(steps, std::floor(first.new_tokens / left));
      for (size_t i = 0; i < prompts.size() && left > 0; ++i) {
        const Job& job = running_[prompts[i]].job;
        rows[i] = std::min(job.new_tokens, left);
        left -= rows[i];
        work.prefill_rows += static_cast<uint32_t>(std::ceil(rows[i]));
        work.prefill_kv_bytes += rows[i] * job.prompt_row_bytes;
      }
    }
    steps = std::max(steps, 1.0);
    const double steps_ns = steps * backlog_.StepNs(work);
    const double row_ns = steps_ns / std::max(work.rows(), 1u);
    at_ns_ += steps_ns;
    ended_ += steps * ends;
    for (auto& [job, asked] : running_) {
      if (job.new_tokens > 0) continue;
      Charge(job, job.choices * row_ns);
      if (job.ends_there) job.answer_tokens -= steps;
    }
    bool has_first_token = false;
    for (size_t i = 0; i < prompts.size(); ++i) {
      auto& [job, asked] = running_[prompts[i]];
      Charge(job, rows[i] * row_ns);
      job.new_tokens -= steps * rows[i];
      if (job.new_tokens >= 0.5) continue;
      job.new_tokens = 0;
      has_first_token |= asked;
    }
    EndAnswers();
    return has_first_token;
  }

  void Charge(const Job& job, double service_ns) {
    tenants_[job.tenant].charge_ns += service_ns / backlog_.tenants[job.tenant].weight;
  }

  // Ends requests that have all their tokens; and the one with the least to come, when one ended of
  // those whose lengths are not known.
  void EndAnswers() {
    std::optional<size_t> least;
    for (size_t i = running_.size(); i-- > 0;) {
      const Job& job = running_[i].job;
      if (job.new_tokens > 0) continue;
      if (job.ends_there) {
        if (job.answer_tokens <= 0) {
          End(i);
          if (least) --*least;
        }
      } else if (!least || job.answer_tokens < running_[*least].job.answer_tokens) {
        least = i;
      }
    }
    if (!least || ended_ < 1) return;
    ended_ = 0;
    // If the request has several choices, only one of them ends now.
    Job& job = running_[*least].job;
    if (job.choices == 1) return End(*least);
    --job.choices;
    --choices_;
    --tenants_[job.tenant].choices;
  }

  const Backlog& backlog_;
  const double now_ns_;
  double at_ns_ = 0;
  std::vector<Run> running_, waiting_;  // in the order in which they came
  std::vector<Tenant> tenants_;
  uint32_t choices_ = 0;  // that run
  uint32_t starts_ = 0;
  uint32_t rounds_ = 0;  // calls of Step
  double unseen_ =
      0;  // requests of the asked one's tenant before it, of which nothing else is known
  double ended_ = 0;  // how far the next answer of unknown length is from its begin (0) to its end
};

}  // namespace

double Backlog::StepNs(const StepWork& work) const {
  return work.prefill_rows > 0 || knows_decoding ? cost.PredictNs(work) : 0;
}

double Backlog::EndNs() const {
  double ends = 0;
  for (const Job& job : running) ends += job.choices / std::max(job.answer_tokens, 1.0);
  return ends > 0 ? StepNs({.decode_rows = parallel}) / ends : 0;
}

uint32_t Backlog::IndexOf(std::string_view tenant) const {
  const auto found = std::ranges::find(tenants, tenant, &Tenant::name);
  return found == tenants.end() ? 0 : static_cast<uint32_t>(found - tenants.begin());
}

Backlog::Job MakeJob(const KvLayout& layout, const JobSize& size) {
  const uint32_t answer = std::min(size.max_answer, size.expected_answer);
  const auto row_bytes = [&](uint64_t tokens) {
    return static_cast<double>(layout.SeenBytes(tokens));
  };
  return {.tenant = size.tenant,
          .choices = size.choices,
          .new_tokens = static_cast<double>(size.new_tokens + size.source_tokens),
          .answer_tokens = static_cast<double>(answer),
          .ends_there = size.max_answer <= size.expected_answer,
          .prompt_row_bytes = row_bytes(size.tokens - size.new_tokens / 2),
          .answer_row_bytes = row_bytes(size.tokens + answer / 2)};
}

WaitEstimate EstimateWait(const Backlog& backlog, std::span<const Job> arrivals, uint64_t now_ns) {
  const Job& asked = arrivals.back();
  const bool knows_end = backlog.tenants[asked.tenant].knows_answers || asked.ends_there;
  if (!backlog.cost.knows_anything()) return {.knows_end = knows_end};
  WaitEstimate estimate = Forecast(backlog, arrivals, now_ns).Play();
  estimate.end_ns = estimate.first_token_ns +
                    asked.answer_tokens * backlog.StepNs({.decode_rows = backlog.parallel});
  estimate.knows_end = knows_end;
  return estimate;
}

}  // namespace kvasir

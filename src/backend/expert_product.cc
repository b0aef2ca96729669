#include "backend/expert_product.h"

#include <algorithm>

#include "backend/backend.h"
#include "base/bytes.h"
#include "base/check.h"

namespace kvasir {
namespace {

constexpr auto kGate = [](const PackedExpert& expert) -> const PackedMatrix& {
  return expert.gate;
};
constexpr auto kUp = [](const PackedExpert& expert) -> const PackedMatrix& { return expert.up; };
constexpr auto kDown = [](const PackedExpert& expert) -> const PackedMatrix& {
  return expert.down;
};

}  // namespace

ExpertProduct::Scratch::Scratch(const Options& o, Arena& arena) {
  const uint64_t slots_of_all = uint64_t{o.max_rows} * o.chosen;
  const uint64_t rows = o.experts == 0 ? 0 : o.max_rows;
  logits_stride = RoundUp(o.experts, kPanelOutputs);
  hidden_stride = RoundUp(o.hidden, kPanelOutputs) + kPanelOutputs;  // an odd number of cache lines
  ffn_stride = RoundUp(o.ffn, kPanelOutputs) + kPanelOutputs;
  logits = arena.TakeArray<float>(rows * logits_stride);
  chosen = arena.TakeArray<uint32_t>(slots_of_all);
  weights = arena.TakeArray<float>(slots_of_all);
  slots = arena.TakeArray<uint32_t>(slots_of_all);
  members = arena.TakeArray<Member>(o.experts);
  gathered = arena.TakeArray<float>(slots_of_all * hidden_stride);
  ffn = arena.TakeArray<float>(slots_of_all * ffn_stride);
  const uint64_t row_bytes = ActivationLayout(std::max(o.hidden, o.ffn)).bytes();
  quantised = arena.Take(o.quantised ? slots_of_all * row_bytes : 0);
  gated = arena.TakeArray<float>(o.experts == 0 ? 0 : o.threads * kGatedFloats);
}

ExpertProduct::ExpertProduct(const Options& options, Arena& arena, ThreadPool& pool)
    : o_(options), kernels_(options.target), pool_(pool), scratch_(options, arena) {}

void ExpertProduct::Run(std::span<const PackedExpert> experts, Routing routing, Activation act,
                        const Call& call) {
  KV_DCHECK(call.rows <= o_.max_rows && experts.size() == o_.experts);
  Choose(routing, call);
  Gather(call);
  GateAndUp(experts, act);
  Down(experts);
  Join(call);
}

void ExpertProduct::Choose(Routing routing, const Call& call) {
  const uint32_t k = o_.chosen;
  ForEach(call.rows, uint64_t{call.rows} * o_.experts * 64, [&](uint32_t row) {
    const std::span chosen(scratch_.chosen + size_t{row} * k, k);
    const float* logits = scratch_.logits + row * scratch_.logits_stride;
    if (ChooseExperts(routing, {logits, o_.experts}, chosen,
                      {scratch_.weights + size_t{row} * k, k})) {
      return;
    }
    std::ranges::fill(chosen, kNoExpert);
    call.finite[row] = false;
  });
  // Members with rows only, in the order of experts, and the slots of their rows.
  std::fill_n(scratch_.members, o_.experts, Member{});
  const size_t choices = size_t{call.rows} * k;
  for (size_t i = 0; i < choices; ++i) {
    if (scratch_.chosen[i] != kNoExpert) ++scratch_.members[scratch_.chosen[i]].rows;
  }
  num_slots_ = 0;
  for (uint32_t expert = 0; expert < o_.experts; ++expert) {
    scratch_.members[expert] = {expert, num_slots_, scratch_.members[expert].rows, num_slots_};
    num_slots_ += scratch_.members[expert].rows;
  }
  for (size_t i = 0; i < choices; ++i) {  // first_item: the member's next free slot
    if (scratch_.chosen[i] == kNoExpert) continue;
    scratch_.slots[i] = scratch_.members[scratch_.chosen[i]].first_item++;
  }
  Member* end = std::remove_if(scratch_.members, scratch_.members + o_.experts,
                               [](const Member& member) { return member.rows == 0; });
  num_members_ = static_cast<uint32_t>(end - scratch_.members);
}

void ExpertProduct::Gather(const Call& call) {
  ForEach(call.rows, uint64_t{num_slots_} * o_.hidden, [&](uint32_t row) {
    for (size_t i = size_t{row} * o_.chosen; i < size_t{row + 1} * o_.chosen; ++i) {
      if (scratch_.chosen[i] == kNoExpert) continue;
      std::copy_n(call.x + row * call.stride, o_.hidden,
                  scratch_.gathered + scratch_.slots[i] * scratch_.hidden_stride);
    }
  });
}

void ExpertProduct::GateAndUp(std::span<const PackedExpert> experts, Activation act) {
  const float* x = scratch_.gathered;
  const size_t stride = scratch_.hidden_stride;
  // Rows are quantised for one format. Different formats are rare: then gate's products wait in
  // ffn.
  const bool together = std::ranges::all_of(members(), [&](const Member& member) {
    const PackedExpert& expert = experts[member.expert];
    return expert.gate.run[0].format == expert.up.run[0].format;
  });
  const auto ffn_of = [&](const Member& member, const ProductItem& item) {
    return scratch_.ffn + (member.first_slot + item.row) * scratch_.ffn_stride +
           item.panel * kPanelOutputs;
  };
  if (!together) {
    Quantise(experts, kGate, x, stride);
    ForItems(experts, kGate, 1, [&](const Member& member, const ProductItem& item, uint32_t) {
      const PackedMatrix& gate = experts[member.expert].gate;
      kernels_.Multiply(gate, gate.run[0], RowsOf(member, x, stride, gate.k), item,
                        ffn_of(member, item), scratch_.ffn_stride, Backend::Into::kReplace);
    });
  }
  Quantise(experts, kUp, x, stride);
  ForItems(experts, kUp, together ? 2 : 1,
           [&](const Member& member, const ProductItem& item, uint32_t thread) {
             const auto& [gate, up, down] = experts[member.expert];
             const ProductRows rows = RowsOf(member, x, stride, up.k);
             const uint32_t n =
                 std::min(item.panels * kPanelOutputs, up.outputs - item.panel * kPanelOutputs);
             const size_t width = item.panels * kPanelOutputs;
             KV_DCHECK(item.rows * width * 2 <= kGatedFloats);
             float* products = scratch_.gated + thread * kGatedFloats;
             if (together) {
               kernels_.Multiply(gate, gate.run[0], rows, item, products, width * 2,
                                 Backend::Into::kReplace);
             }
             kernels_.Multiply(up, up.run[0], rows, item, products + width, width * 2,
                               Backend::Into::kReplace);
             for (uint32_t row = 0; row < item.rows; ++row) {
               float* y = ffn_of(member, item) + row * scratch_.ffn_stride;
               const float* of = products + row * width * 2;
               kernels_.tensor.gated(act, together ? of : y, of + width, n, y);
             }
           });
}

void ExpertProduct::Down(std::span<const PackedExpert> experts) {
  Quantise(experts, kDown, scratch_.ffn, scratch_.ffn_stride);
  ForItems(experts, kDown, 1, [&](const Member& member, const ProductItem& item, uint32_t) {
    const PackedMatrix& down = experts[member.expert].down;
    float* y = scratch_.gathered + (member.first_slot + item.row) * scratch_.hidden_stride +
               item.panel * kPanelOutputs;
    kernels_.Multiply(down, down.run[0], RowsOf(member, scratch_.ffn, scratch_.ffn_stride, down.k),
                      item, y, scratch_.hidden_stride, Backend::Into::kReplace);
  });
}

void ExpertProduct::Join(const Call& call) {
  ForEach(call.rows, uint64_t{num_slots_} * o_.hidden, [&](uint32_t row) {
    float* y = call.y + row * call.stride;
    std::fill_n(y, o_.hidden, 0.0f);
    for (size_t i = size_t{row} * o_.chosen; i < size_t{row + 1} * o_.chosen; ++i) {
      if (scratch_.chosen[i] == kNoExpert) continue;
      kernels_.tensor.add_scaled(scratch_.weights[i],
                                 scratch_.gathered + scratch_.slots[i] * scratch_.hidden_stride,
                                 o_.hidden, y);
    }
  });
}

ProductRows ExpertProduct::RowsOf(const Member& member, const float* x, size_t stride,
                                  uint32_t k) const {
  return {x + member.first_slot * stride, stride,
          scratch_.quantised + member.first_slot * ActivationLayout(k).bytes(), member.rows};
}

template <typename Of>
void ExpertProduct::Quantise(std::span<const PackedExpert> experts, Of of, const float* x,
                             size_t stride) {
  const uint32_t k = of(experts[0]).k;
  ForEach(num_members_, uint64_t{num_slots_} * k * 16, [&](uint32_t i) {
    const Member& member = members()[i];
    const WeightFormat format = of(experts[member.expert]).run[0].format;
    if (!LayoutOf(format).quantised()) return;
    const ProductRows rows = RowsOf(member, x, stride, k);
    for (uint32_t block = 0; block * kBlockRows < member.rows; ++block) {
      kernels_.Quantise(format, k, rows, block);
    }
  });
}

template <typename Of, typename Fn>
void ExpertProduct::ForItems(std::span<const PackedExpert> experts, Of of, uint32_t matrices,
                             Fn&& fn) {
  const uint32_t k = of(experts[0]).k, outputs = of(experts[0]).outputs;
  const auto panels = static_cast<uint32_t>(CeilDiv(outputs, kPanelOutputs));
  const bool few = uint64_t{num_slots_} * k * outputs * matrices < kMinParallelWork;
  uint64_t phase_bytes = 0;
  for (const Member& member : members()) phase_bytes += WeightBytes(of(experts[member.expert]));
  phase_bytes *= matrices;
  read_bytes_ += phase_bytes;
  const auto cut_of = [&](const Member& member) {
    const WeightFormat format = of(experts[member.expert]).run[0].format;
    const uint32_t item_rows = kernels_.ItemRows(format);
    return ProductCut(
        {.panel_bytes = PanelBytes(format, k) * matrices,
         .in_flight = ProductKernels::InFlight(format, member.rows),
         .max_panels = kGatedFloats / (2 * std::min(member.rows, item_rows) * kPanelOutputs),
         .panels = panels,
         .rows = member.rows,
         .item_rows = item_rows,
         .phase_bytes = phase_bytes,
         .threads = few ? 1 : pool_.num_threads()});
  };
  uint32_t items = 0;
  for (Member& member : members()) {
    member.first_item = items;
    items += cut_of(member).items();
  }
  const auto compute = [&](uint32_t index, uint32_t thread) {
    const auto after = std::ranges::upper_bound(members(), index, {}, &Member::first_item);
    const Member& member = *(after - 1);
    fn(member, cut_of(member).At(index - member.first_item), thread);
  };
  if (!few) return pool_.Run(items, compute);
  for (uint32_t i = 0; i < items; ++i) compute(i, 0);
}

template <typename Fn>
void ExpertProduct::ForEach(uint32_t count, uint64_t work, Fn&& fn) {
  if (work >= kMinParallelWork) return pool_.Run(count, [&](uint32_t i, uint32_t) { fn(i); });
  for (uint32_t i = 0; i < count; ++i) fn(i);
}

}  // namespace kvasir

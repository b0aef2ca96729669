#include "base/cpu_topology.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include "base/system_files.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kMaxCpus = 8192;  // limit of the affinity mask and of ids in lists

// Parses "0-3,8,10-11", the kernel's form of a set; skips what does not parse.
std::vector<uint32_t> ParseList(std::string_view text) {
  std::vector<uint32_t> ids;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), piece.size() + 1));
    const size_t dash = piece.find('-');
    const auto first = ParseSystemInt(piece.substr(0, dash));
    const auto last = dash == piece.npos ? first : ParseSystemInt(piece.substr(dash + 1));
    if (!first || !last || *first < 0 || *last >= kMaxCpus) continue;
    for (int64_t id = *first; id <= *last; ++id) ids.push_back(static_cast<uint32_t>(id));
  }
  return ids;
}

uint32_t CoreOf(const std::string& root, uint32_t cpu) {
  const std::string folder = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
  for (const char* name : {"/topology/core_cpus_list", "/topology/thread_siblings_list"}) {
    const auto text = ReadSystemText(folder + name);
    if (!text) continue;
    const std::vector<uint32_t> siblings = ParseList(*text);
    if (!siblings.empty()) return *std::min_element(siblings.begin(), siblings.end());
  }
  return cpu;
}

// Reads "Node 0 MemTotal:   16316412 kB"
uint64_t MemoryOf(const std::string& node_folder) {
  std::ifstream file(node_folder + "/meminfo");
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find("MemTotal:");
    if (at == line.npos) continue;
    uint64_t kib = 0;
    std::istringstream(line.substr(at + 9)) >> kib;
    return kib * 1024;
  }
  return 0;
}

void ReadNodes(const std::string& root, CpuTopology& topology) {
  const std::string folder = root + "/sys/devices/system/node";
  const std::string online = ReadSystemText(folder + "/online").value_or("");
  std::map<uint32_t, uint32_t> node_of;
  for (const uint32_t id : ParseList(online)) {
    const auto cpus = ReadSystemText(folder + "/node" + std::to_string(id) + "/cpulist");
    for (const uint32_t cpu : ParseList(cpus.value_or(""))) node_of[cpu] = id;
  }
  std::set<uint32_t> used;
  for (Cpu& cpu : topology.cpus) {
    const auto found = node_of.find(cpu.id);
    cpu.node = found == node_of.end() ? 0 : found->second;
    used.insert(cpu.node);
  }
  for (const uint32_t id : ParseList(ReadSystemText(folder + "/has_memory").value_or(online))) {
    if (!used.contains(id)) continue;
    topology.nodes.push_back({id, MemoryOf(folder + "/node" + std::to_string(id))});
  }
  if (topology.nodes.empty()) topology.nodes.push_back({0, 0});
}

// Reads "max 100000" or "150000 100000": microseconds of CPU time, and of the period.
std::optional<double> LimitOfV2(const std::string& folder) {
  const auto text = ReadSystemText(folder + "/cpu.max");
  if (!text) return std::nullopt;
  const size_t space = text->find(' ');
  const auto quota = ParseSystemInt(std::string_view(*text).substr(0, space));
  const auto period = space == text->npos
                          ? std::nullopt
                          : ParseSystemInt(std::string_view(*text).substr(space + 1));
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::optional<double> LimitOfV1(const std::string& folder) {
  const auto quota = ParseSystemInt(ReadSystemText(folder + "/cpu.cfs_quota_us").value_or(""));
  const auto period = ParseSystemInt(ReadSystemText(folder + "/cpu.cfs_period_us").value_or(""));
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// Returns the tightest limit of this process's cgroup and of those above it.
std::optional<double> LimitOf(const std::string& root, bool v2) {
  std::optional<double> tightest;
  for (const std::string& folder : CgroupFolders(root, v2 ? "" : "cpu")) {
    const auto limit = v2 ? LimitOfV2(folder) : LimitOfV1(folder);
    if (limit && (!tightest || *limit < *tightest)) tightest = limit;
  }
  return tightest;
}

}  // namespace

uint32_t CpuTopology::num_cores() const {
  std::vector<uint32_t> cores;
  for (const Cpu& cpu : cpus) cores.push_back(cpu.core);
  std::sort(cores.begin(), cores.end());
  return static_cast<uint32_t>(std::unique(cores.begin(), cores.end()) - cores.begin());
}

uint32_t CpuTopology::default_threads() const {
  const uint32_t cores = num_cores();
  if (!cpu_limit || *cpu_limit >= cores) return cores;
  return std::max(1u, static_cast<uint32_t>(*cpu_limit));
}

std::vector<uint32_t> CpuTopology::PinOrder(uint32_t threads) const {
  struct Place {
    uint32_t sibling, node, core, id;  // in the order of comparison
    auto operator<=>(const Place&) const = default;
  };
  std::map<uint32_t, uint32_t> siblings;
  std::vector<Place> places;
  for (const Cpu& cpu : cpus) places.push_back({siblings[cpu.core]++, cpu.node, cpu.core, cpu.id});
  std::sort(places.begin(), places.end());
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < threads; ++i) order.push_back(places[i % places.size()].id);
  return order;
}

CpuTopology ReadCpuTopology(const std::string& root, const std::vector<uint32_t>& allowed) {
  CpuTopology topology;
  for (const uint32_t id : allowed) topology.cpus.push_back({id, CoreOf(root, id), 0});
  if (topology.cpus.empty()) topology.cpus.push_back({0, 0, 0});
  std::sort(topology.cpus.begin(), topology.cpus.end(),
            [](const Cpu& a, const Cpu& b) { return a.id < b.id; });
  ReadNodes(root, topology);
  for (const bool v2 : {false, true}) {
    const auto limit = LimitOf(root, v2);
    if (limit && (!topology.cpu_limit || *limit < *topology.cpu_limit)) topology.cpu_limit = limit;
  }
  return topology;
}

CpuTopology ReadCpuTopology() { return ReadCpuTopology("", AllowedCpus()); }

std::vector<uint32_t> AllowedCpus() {
  std::vector<uint64_t> mask(kMaxCpus / 64);
  const long bytes = syscall(SYS_sched_getaffinity, 0, mask.size() * 8, mask.data());
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; bytes > 0 && id < static_cast<uint64_t>(bytes) * 8; ++id) {
    if (mask[id / 64] >> (id % 64) & 1) ids.push_back(id);
  }
  return ids.empty() ? std::vector<uint32_t>{0} : ids;
}

bool PinThisThread(const std::vector<uint32_t>& cpus) {
  std::vector<uint64_t> mask(kMaxCpus / 64);
  for (const uint32_t cpu : cpus) {
    if (cpu >= kMaxCpus) return false;
    mask[cpu / 64] |= uint64_t{1} << (cpu % 64);
  }
  return syscall(SYS_sched_setaffinity, 0, mask.size() * 8, mask.data()) == 0;
}

bool InterleavePages(void* base, uint64_t bytes, const std::vector<MemoryNode>& nodes) {
  if (nodes.size() < 2) return true;
  std::vector<unsigned long> mask;
  constexpr uint32_t kBits = 8 * sizeof(unsigned long);
  for (const MemoryNode& node : nodes) {
    if (node.id / kBits >= mask.size()) mask.resize(node.id / kBits + 1);
    mask[node.id / kBits] |= 1ul << (node.id % kBits);
  }
  // The kernel reads one bit less than maxnode.
  return syscall(SYS_mbind, base, bytes, MPOL_INTERLEAVE, mask.data(), mask.size() * kBits + 1,
                 0) == 0;
}

}  // namespace kvasir

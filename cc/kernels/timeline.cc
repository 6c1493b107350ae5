// Timeline, and its ops TspsMark, TspsRefuseCollectives and TspsTimeline.
#include "kernels/timeline.h"

#include <algorithm>
#include <cstring>

#include "core/base/clock.h"
#include "kernels/kernel.h"

namespace tsps {
namespace {

// The number of intervals that later ones are compared with: work overlaps one or two collectives.
constexpr size_t kRecent = 8;

// Returns whether a collective is between nodes, which its name shows.
bool IsBetweenNodes(const std::string& name) { return name.find(".nodes") != std::string::npos; }

uint64_t Overlap(const Timeline::Interval& a, const std::vector<Timeline::Interval>& intervals) {
  uint64_t overlap = 0;
  for (const Timeline::Interval& b : intervals) {
    const uint64_t begin = std::max(a.begin_ns, b.begin_ns), end = std::min(a.end_ns, b.end_ns);
    overlap += end > begin ? end - begin : 0;
  }
  return overlap;
}

void Remember(std::vector<Timeline::Interval>* recent, const Timeline::Interval& interval) {
  if (recent->size() == kRecent) recent->erase(recent->begin());
  recent->push_back(interval);
}

// Builds a JSON list of spans.
class JsonSpans {
 public:
  void Add(const std::string& name, uint64_t begin_ns, uint64_t end_ns) {
    if (text_.size() > 1) text_ += ",";
    text_ += "[\"";
    for (const char c : name) text_ += c == '"' || c == '\\' || c < ' ' ? '_' : c;
    text_ += "\"," + std::to_string(begin_ns) + "," + std::to_string(end_ns) + "]";
  }
  std::string Text() const { return text_ + "]"; }

 private:
  std::string text_ = "[";
};

}  // namespace

Timeline& Timeline::Get() {
  static Timeline* const timeline = new Timeline;
  return *timeline;
}

void Timeline::Start() {
  std::lock_guard<std::mutex> lock(mutex_);
  recording_ = true;
  spans_.clear();
}

std::string Timeline::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  recording_ = false;
  JsonSpans json;
  for (const Span& span : spans_) {
    json.Add(span.name, span.interval.begin_ns, span.interval.end_ns);
  }
  spans_.clear();
  return json.Text();
}

std::string Timeline::InFlight() {
  std::lock_guard<std::mutex> lock(mutex_);
  JsonSpans json;
  for (const auto& [name, begin_ns] : begun_) json.Add(name, begin_ns, NowNs());
  return json.Text();
}

template <typename Name>
void Timeline::Record(const Name& name, Interval interval) {
  if (recording_ && spans_.size() < kMostSpans) spans_.push_back({name, interval});
}

void Timeline::AddWork(const char* name, Interval work, bool of_ring) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (of_ring) {
    counters_.overlapped_ns += Overlap(work, sent_);
    Remember(&worked_, work);
  }
  Record(name, work);
}

Status Timeline::BeginCollective(const std::string& name) {
  TSPS_RETURN_IF_ERROR(MayBegin(name));
  std::lock_guard<std::mutex> lock(mutex_);
  begun_[name] = NowNs();
  return Status();
}

void Timeline::EndCollective(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto begun = begun_.find(name);
  if (begun == begun_.end()) return;
  const Interval sent = {begun->second, NowNs()};
  begun_.erase(begun);
  if (IsBetweenNodes(name)) {
    counters_.sending_ns += sent.end_ns - sent.begin_ns;
    counters_.overlapped_ns += Overlap(sent, worked_);
    Remember(&sent_, sent);
  }
  Record(name, sent);
}

void Timeline::RefuseCollectives(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  refusal_ = reason;
}

Status Timeline::MayBegin(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (refusal_.empty()) return Status();
  return Error(Code::kUnavailable, "'", name, "' did not begin: ", refusal_);
}

Timeline::Counters Timeline::counters() {
  std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

WorkSpan::WorkSpan(const char* name, bool of_ring)
    : name_(name), of_ring_(of_ring), begin_ns_(NowNs()) {}

WorkSpan::~WorkSpan() { Timeline::Get().AddWork(name_, {begin_ns_, NowNs()}, of_ring_); }

namespace {

class MarkKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(name_, attributes.String("name_of"));
    TSPS_ASSIGN_OR_RETURN(const std::string phase, attributes.String("phase"));
    begins_ = phase == "begin";
    return Status();
  }

  // Inputs: value, variable. Outputs: the value.
  Status Compute(const KernelContext& context) {
    if (begins_) {
      TSPS_RETURN_IF_ERROR(Timeline::Get().BeginCollective(name_));
    } else {
      Timeline::Get().EndCollective(name_);
    }
    return context.Forward(0, 0);
  }

 private:
  std::string name_;
  bool begins_ = false;
};

// Inputs: reason.
Status RefuseCollectives(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string reason, context.String(0, "reason"));
  Timeline::Get().RefuseCollectives(reason);
  return Status();
}

class TimelineKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(action_, attributes.String("action"));
    return Status();
  }

  // Outputs: the recorded spans as JSON text; an empty text for "start".
  Status Compute(const KernelContext& context) {
    std::string text;
    if (action_ == "start") {
      Timeline::Get().Start();
    } else {
      text = action_ == "stop" ? Timeline::Get().Stop() : Timeline::Get().InFlight();
    }
    TSPS_ASSIGN_OR_RETURN(const Tensor out,
                          context.Output<uint8_t>(0, {static_cast<int64_t>(text.size())}));
    if (!text.empty()) std::memcpy(out.data<uint8_t>(), text.data(), text.size());
    return Status();
  }

 private:
  std::string action_;
};

}  // namespace

void RegisterTimelineKernels() {
  RegisterKernel<MarkKernel>("TspsMark");
  RegisterKernel<FunctionKernel<RefuseCollectives>>("TspsRefuseCollectives");
  RegisterKernel<TimelineKernel>("TspsTimeline");
}

}  // namespace tsps

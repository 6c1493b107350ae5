// LayerDifference: what changes the rows of a version into those of a base, as a stream of entries
// for a layer.
#ifndef TFSPS_CORE_SERVING_LAYER_DIFFERENCE_H_
#define TFSPS_CORE_SERVING_LAYER_DIFFERENCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "core/serving/entry_source.h"
#include "core/serving/layer_merge.h"

namespace tsps {

// Not thread-safe. Needs no memory of its own: the files are mapped.
class LayerDifference final : public EntrySource {
 public:
  // `base` has all rows as they are to be; `older` are the files of the version, newest first.
  // InvalidArgument: they have other hashes or another row code.
  static Result<std::unique_ptr<LayerDifference>> Of(
      std::shared_ptr<const ServingFile> base,
      std::vector<std::shared_ptr<const ServingFile>> older);

  uint64_t most_keys() const override { return keys_; }
  Result<bool> Next(ServingEntry* entry) override;
  CodeError error() const override { return base_->error(); }

 private:
  LayerDifference() = default;
  Status Rewind();
  // Goes to the next entry of the version that has a row.
  Status NextOlder();

  std::shared_ptr<const ServingFile> base_;
  std::vector<std::shared_ptr<const ServingFile>> older_;
  std::vector<ServingFile::Cursor> cursor_;  // one, of the base
  std::unique_ptr<LayerMerge> merge_;
  ServingEntry older_entry_;
  bool has_older_ = false;
  uint64_t keys_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_LAYER_DIFFERENCE_H_

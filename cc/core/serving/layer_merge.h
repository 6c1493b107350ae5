// LayerMerge: several files of a table's version as one stream of entries, in which newer files
// count.
#ifndef TFSPS_CORE_SERVING_LAYER_MERGE_H_
#define TFSPS_CORE_SERVING_LAYER_MERGE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "core/serving/entry_source.h"

namespace tsps {

// Not thread-safe. Needs no memory of its own: the files are mapped.
class LayerMerge final : public EntrySource {
 public:
  // `files`: adjacent files of one version, newest first.
  static Result<std::unique_ptr<LayerMerge>> Of(
      std::vector<std::shared_ptr<const ServingFile>> files);

  uint64_t most_keys() const override { return keys_; }
  Result<bool> Next(ServingEntry* entry) override;
  // The files know the errors of their own rows only, so this counts replaced rows, too.
  CodeError error() const override;

 private:
  LayerMerge() = default;
  Status Rewind();

  std::vector<std::shared_ptr<const ServingFile>> files_;
  std::vector<ServingFile::Cursor> cursors_;
  uint64_t keys_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_LAYER_MERGE_H_

#include "core/table/layout.h"

#include "core/base/crc32c.h"

namespace tsps {

uint32_t TableLayoutHash() {
  const uint64_t sizes[] = {sizeof(TableFileHeader), sizeof(TableState), sizeof(Segment),
                            kSegmentEntries,         sizeof(Entry),      sizeof(PlaneListFile),
                            sizeof(ErasedKey)};
  return Crc32c(0, sizes, sizeof(sizes));
}

Status CheckFormat(uint32_t version, uint32_t layout_hash, uint32_t own_layout_hash,
                   const std::string& path) {
  if (version == kFormatVersion && layout_hash == own_layout_hash) return Status();
  const auto name = [](uint32_t number, uint32_t hash) {
    return "format version " + std::to_string(number) + " (layout " + std::to_string(hash) + ")";
  };
  return OtherFormat(path, name(version, layout_hash), name(kFormatVersion, own_layout_hash));
}

}  // namespace tsps

// Address space: how much of it a file is mapped over.
//
// A mapping never moves while it is in use, so a file can grow no further than the range it got
// when it was mapped. Any file may turn out to be the one that fills the disk, and nobody knows how
// many tables a process will have, but there are only 128 TiB for all. So the first files get
// whatever they may ever need, up to 8 TiB, and the share of a file halves with every sixteenth of
// the address space that is taken. With 200 tables and Adam, all mapped twice in the process, the
// last file still gets 8 GiB; with 1,000 tables, 1 GiB. (Equal shares were dropped: of 1,000 files
// each would get 128 GiB, which is too little for one table and more than most ever use.)
//
// A file that is there already gets at least twice its size: whoever opens a file again that has
// outgrown its range can go on, and the ranges of large files do not depend on the order of
// opening.
#ifndef TFSPS_CORE_OS_ADDRESS_RANGE_H_
#define TFSPS_CORE_OS_ADDRESS_RANGE_H_

#include <cstdint>

namespace tsps {

struct AddressSpace {
  uint64_t total;  // bytes that the process may map
  uint64_t taken;  // bytes mapped so far, by anyone
};

// 128 TiB, or the process's RLIMIT_AS, and the size of its mappings.
AddressSpace AddressSpaceOfProcess();

// Bytes of address range for a file that now has `size` bytes and never more than `bound`, on a
// file system of `capacity` bytes. Whole pages.
uint64_t AddressRange(uint64_t bound, uint64_t size, uint64_t capacity, const AddressSpace& space);

// The same for an open file.
uint64_t AddressRangeFor(int fd, uint64_t bound, uint64_t size);

}  // namespace tsps

#endif  // TFSPS_CORE_OS_ADDRESS_RANGE_H_

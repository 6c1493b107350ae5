// The size of the address range that a file is mapped over.
//
// A mapping never moves while it is in use, so a file can grow no further than the range that it
// got when it was mapped. Any file may become the one that fills the disk, the number of tables of
// a process is not known in advance, and all ranges together have 128 TiB. So the first files get
// all that they may ever need, up to 8 TiB, and the range of a new file halves with every sixteenth
// of the address space that is taken. With 200 tables and Adam, all mapped twice in the process,
// the last file still gets 8 GiB; with 1,000 tables, 1 GiB. (Equal ranges were rejected: each of
// 1,000 files would get 128 GiB, too little for one large table and more than most tables ever
// use.)
//
// An existing file gets at least twice its size. So a process that opens a file again after it has
// outgrown its range can continue, and the ranges of large files do not depend on the order in
// which they are opened.
#ifndef TFSPS_CORE_OS_ADDRESS_RANGE_H_
#define TFSPS_CORE_OS_ADDRESS_RANGE_H_

#include <cstdint>

namespace tsps {

struct AddressSpace {
  uint64_t total;  // bytes that the process may map at most
  uint64_t taken;  // bytes that the process has mapped
};

// Returns the address space of this process: 128 TiB, or its RLIMIT_AS if that is less, and the
// size of its mappings.
AddressSpace AddressSpaceOfProcess();

// Returns the bytes of the address range for a file that has `size` bytes now and never more than
// `bound`, on a file system of `capacity` bytes. The result is a multiple of the page size.
uint64_t AddressRange(uint64_t bound, uint64_t size, uint64_t capacity, const AddressSpace& space);

// Returns the same for an open file, with the capacity of its file system and this process's space.
uint64_t AddressRangeFor(int fd, uint64_t bound, uint64_t size);

}  // namespace tsps

#endif  // TFSPS_CORE_OS_ADDRESS_RANGE_H_

//! The allocator of every program, RocksDB in it included.

/// jemalloc. With the one of the C library a sixth of a busy node's time goes into allocating; this one takes a quarter
/// off the CPU time of a lock and its release, and gives memory back after a peak.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

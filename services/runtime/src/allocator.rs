//! The allocator of every program, including RocksDB in it.

/// jemalloc. With the C library's allocator a busy node spends a sixth of its time allocating; jemalloc reduces the CPU
/// time of a lock and its release by a quarter, and returns memory after a peak.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

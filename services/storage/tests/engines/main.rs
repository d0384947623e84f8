//! What the engines of the store promise: one suite for both, faults on the twin, damage to the files of RocksDB.

mod common;
mod damage;
mod faults;
mod files;
mod latency;
mod receiving;
mod suite;
mod torn;

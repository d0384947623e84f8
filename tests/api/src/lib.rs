//! Runs the programs of Holdfast as child processes, for tests of what they answer.
//!
//! Invariant: no process and no data outlives the tests that made it, also when those are killed.
//!
//! Deliberately unknown here: what the programs say over their ports.

mod background;
mod program;
mod scratch;
mod standalone;

pub use background::BackgroundProcess;
pub use program::{ProgramExit, program, run_to_exit};
pub use scratch::scratch;
pub use standalone::Standalone;

//! The targets of `holdfast-fuzz-tests` for libFuzzer, which looks for bytes that lead to code that no others led to.

use holdfast_fuzz_tests::TARGETS;

#[doc(hidden)]
pub use libfuzzer_sys;

/// Reads the bytes as the target of that name does. Panics when it does, or when there is none.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("the program is named after a target");
    (target.run)(bytes);
}

/// A program that feeds the target that it is named after.
#[macro_export]
macro_rules! guided {
    () => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $crate::run(env!("CARGO_BIN_NAME"), bytes));
    };
}

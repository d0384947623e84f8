//! Checks histories that failed tests have left behind: `cargo run --example check_history -- FILE...`.

use std::path::Path;
use std::process::ExitCode;

use holdfast_cluster_tests::checker::check;
use holdfast_cluster_tests::load_history;

fn main() -> ExitCode {
    let mut is_right = true;
    for file in std::env::args().skip(1) {
        match load_history(Path::new(&file)) {
            Ok(records) => {
                let violations = check(&records);
                println!("{file}: {} records, {} violations", records.len(), violations.len());
                violations.iter().for_each(|violation| println!("  {violation:?}"));
                is_right &= violations.is_empty();
            }
            Err(error) => {
                eprintln!("{error}");
                is_right = false;
            }
        }
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

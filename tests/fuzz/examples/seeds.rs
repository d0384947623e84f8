//! Writes the kept inputs as files, where libFuzzer begins: `seeds FOLDER`, run in the folder of this package.

use std::path::PathBuf;
use std::{env, fs, io};

use holdfast_fuzz_tests::{TARGETS, corpus};

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or_else(|| io::Error::other("give it the folder to write to"))?;
    for target in &TARGETS {
        let of_target = folder.join(target.name);
        fs::create_dir_all(&of_target)?;
        for (number, input) in corpus::inputs(target).iter().enumerate() {
            fs::write(of_target.join(format!("kept-{number}")), input)?;
        }
    }
    Ok(())
}

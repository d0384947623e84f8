//! A wall clock for each process, which can be set while it runs; its other clocks go on as they do.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use holdfast_testkit::{Program, run_command};

/// What is put before the C library in a process: see there.
const SOURCE: &str = include_str!("wall_clock.c");

/// Clocks of processes that have not been started yet.
pub struct WallClocks {
    dir: PathBuf,
    library: PathBuf,
}

impl WallClocks {
    /// Prepares clocks in that folder.
    ///
    /// # Errors
    /// When there is no C compiler here, or it fails.
    pub fn prepare(dir: &Path) -> Result<Self, String> {
        let (source, library) = (dir.join("wall_clock.c"), dir.join("wall_clock.so"));
        std::fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        let (from, to) = (source.display().to_string(), library.display().to_string());
        run_command(&["cc", "-O2", "-shared", "-fPIC", "-o", &to, &from].map(str::to_owned))?;
        Ok(Self { dir: dir.to_owned(), library })
    }

    /// Gives a process a clock of its own, right at first, from its next start on.
    pub fn attach(&self, process: &mut Program) {
        self.set_offset(process.name(), 0);
        process.set_environment("LD_PRELOAD", &self.library.display().to_string());
        process.set_environment("OFFSET_FILE", &self.offset_file(process.name()).display().to_string());
    }

    /// Sets the clock of the process of that name: so many seconds before or after the true time.
    pub fn set_offset(&self, name: &str, offset_s: i64) {
        // The process has the file in its memory: it must never be shorter than it is read.
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(self.offset_file(name));
        file.and_then(|mut file| file.write_all(&offset_s.to_ne_bytes())).expect("a clock can be written");
    }

    fn offset_file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.clock"))
    }
}

/// How far that instant, since 1970, is from now; seconds.
pub fn offset_to(instant: Duration) -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later than 1970");
    let seconds = |time: Duration| i64::try_from(time.as_secs()).expect("clocks are not so far ahead");
    seconds(instant) - seconds(now)
}

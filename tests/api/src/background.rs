//! A program that runs beside the tests.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;

use crate::program::{command, kill};
use crate::scratch::scratch;

/// A process that is killed when this value is dropped, and ends by itself when the tests do.
#[derive(Debug)]
pub struct BackgroundProcess {
    child: Child,
    log: PathBuf,
}

impl BackgroundProcess {
    /// Starts a program; what it says goes into a file.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(name: &str, arguments: &[&str]) -> Self {
        let log = scratch().with_extension("log");
        let output = File::create(&log).expect("the log can be written");
        let mut command = command(name, arguments);
        command.stdout(output.try_clone().expect("a file has several handles")).stderr(output);
        Self { child: command.spawn().expect("the program starts"), log }
    }

    /// What it said so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it runs still.
    ///
    /// # Panics
    /// When the system does not know.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }
}

impl Drop for BackgroundProcess {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

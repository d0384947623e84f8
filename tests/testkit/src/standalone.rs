//! A running `holdfast-standalone`.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::time::{Duration, Instant};

use crate::program::Program;
use crate::scratch::scratch;

const PROGRAM: &str = "holdfast-standalone";
const REFUSALS_FLAG: &str = "--refused-credentials-per-second";
const LISTENING_MESSAGE: &str = "Holdfast serves at http";
/// How long it may take until it serves, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to stop by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A process that serves on a free port of this machine. Dropping it kills it, as `kill -9` does.
#[derive(Debug)]
pub struct Standalone {
    program: Program,
    address: SocketAddr,
    data_dir: PathBuf,
}

impl Standalone {
    /// Starts the program on a data directory, and blocks until it serves. Its log is beside the directory. Unless a
    /// flag says otherwise, it refuses any number of credentials a second: all tests come from one address.
    ///
    /// # Panics
    /// With its log, if it does not serve within a minute.
    pub fn start(data_dir: &Path, flags: &[&str]) -> Self {
        let text = data_dir.to_str().expect("scratch paths are text");
        let unlimited = (!flags.contains(&REFUSALS_FLAG)).then_some([REFUSALS_FLAG, "0"]).into_iter().flatten();
        let arguments = ["--listen", "127.0.0.1:0", "--data-dir", text].into_iter();
        let arguments = arguments.chain(unlimited).chain(flags.iter().copied());
        let (folder, name) = (data_dir.parent(), data_dir.file_name().and_then(|name| name.to_str()));
        let (folder, name) = folder.zip(name).expect("a data directory is in a folder");
        let mut program = Program::new(name, PROGRAM, arguments.map(str::to_owned).collect(), folder);
        let earlier_log = program.log().len();
        program.start();
        let address = wait_until_listening(&mut program, earlier_log);
        Self { program, address, data_dir: data_dir.to_owned() }
    }

    /// Starts one without data and flags.
    ///
    /// # Panics
    /// As [`Standalone::start`].
    pub fn fresh() -> Self {
        Self::start(&scratch(), &[])
    }

    /// Where it listens, as clients get it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Returns everything that was written by the processes on its data directory.
    pub fn log(&self) -> String {
        self.program.log()
    }

    /// Returns a secret that its first start wrote, such as `operator.token`.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn secret(&self, file: &str) -> String {
        let path = self.data_dir.join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.trim().to_owned()
    }

    /// Takes its standard input. Dropping it does the same as the end of this process.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.program.take_stdin()
    }

    /// Blocks until it has ended by itself. Returns false if that takes longer than 30 s.
    pub fn wait_for_exit(&mut self) -> bool {
        self.program.wait_for_exit_blocking(STOP_TIMEOUT).is_some()
    }
}

fn wait_until_listening(program: &mut Program, earlier_log: usize) -> SocketAddr {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        if let Some(address) = parse_listen_address(&program.log()[earlier_log..]) {
            return address;
        }
        program.assert_running();
        assert!(Instant::now() < deadline, "{PROGRAM} does not serve; its log:\n{}", program.log());
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The address is complete once its line is.
fn parse_listen_address(text: &str) -> Option<SocketAddr> {
    let (scheme_and_address, _) = text.split_once(LISTENING_MESSAGE)?.1.split_once('\n')?;
    scheme_and_address.split_once("://")?.1.parse().ok()
}

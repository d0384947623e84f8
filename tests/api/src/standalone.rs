//! A running `holdfast-standalone`.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin};
use std::time::{Duration, Instant};

use crate::program::{command, kill, wait_for_exit};
use crate::scratch::scratch;

const PROGRAM: &str = "holdfast-standalone";
const LISTENING_MESSAGE: &str = "Holdfast serves at http";
/// How long it may take until it serves, with others busy on the same machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to stop in good order.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A process that serves on a free port of this machine. It is killed when this value is dropped, and ends by itself
/// when the tests do.
#[derive(Debug)]
pub struct Standalone {
    child: Child,
    address: SocketAddr,
    data_dir: PathBuf,
}

impl Standalone {
    /// Starts the program on a data directory and waits until it serves.
    ///
    /// # Panics
    /// With what the program said, when it does not come to serve.
    pub fn start(data_dir: &Path, flags: &[&str]) -> Self {
        let shown_dir = data_dir.to_str().expect("scratch paths are text");
        let mut arguments = vec!["--listen", "127.0.0.1:0", "--data-dir", shown_dir];
        arguments.extend(flags);
        fs::create_dir_all(data_dir.parent().expect("scratch paths have a parent")).expect("the scratch folder exists");
        let log = data_dir.with_extension("log");
        let output = File::create(&log).expect("the log can be written");
        let mut command = command(PROGRAM, &arguments);
        command.stdout(output.try_clone().expect("a file has several handles")).stderr(output);
        let mut child = command.spawn().expect("the program starts");
        let address = wait_until_listening(&mut child, &log);
        Self { child, address, data_dir: data_dir.to_owned() }
    }

    /// One with new data and no flags.
    ///
    /// # Panics
    /// As [`Standalone::start`].
    pub fn fresh() -> Self {
        Self::start(&scratch(), &[])
    }

    /// Where it listens, as clients are told.
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

    /// A secret that its first start wrote, like `operator.token`.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn secret(&self, file: &str) -> String {
        let path = self.data_dir.join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.trim().to_owned()
    }

    /// Closes its standard input, as the end of its parent does.
    pub fn close_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Whether it ends by itself in good time.
    pub fn wait_for_exit(&mut self) -> bool {
        wait_for_exit(&mut self.child, STOP_TIMEOUT)
    }
}

impl Drop for Standalone {
    /// As `kill -9` does: nothing is written in good order.
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

fn wait_until_listening(child: &mut Child, log: &Path) -> SocketAddr {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        if let Some(address) = parse_listen_address(&text) {
            return address;
        }
        let ended = child.try_wait().expect("a child can be waited for");
        if ended.is_some() || Instant::now() >= deadline {
            kill(child);
            panic!("{PROGRAM} does not serve (exit status {ended:?}); it said:\n{text}");
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The address is complete once its line is.
fn parse_listen_address(text: &str) -> Option<SocketAddr> {
    let (scheme_and_address, _) = text.split_once(LISTENING_MESSAGE)?.1.split_once('\n')?;
    scheme_and_address.split_once("://")?.1.parse().ok()
}

//! One process of a program: started, killed, paused, stopped.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::eventually::eventually_within;
use crate::executables::{executable, find_installed};
use crate::metrics::Metrics;
use crate::rest_client::RestClient;

/// How long a process may take to be gone after `kill -9`.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a process may take to stop by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a process may take to be ready, with a million locks on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Lines of the log that are shown if a process ends unexpectedly.
const LOG_TAIL_LINES: usize = 20;

/// A program with its arguments, and its process while one runs. The process ends with this value, or with the process
/// of the test: its standard input closes then.
#[derive(Debug)]
pub struct Program {
    name: String,
    executable: String,
    /// The file to run instead of the program of that name in this build.
    file: Option<PathBuf>,
    /// A command that runs the program, with its arguments.
    wrapper: Vec<String>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    address: Option<SocketAddr>,
    /// Where it serves a gateway beside that, if it does.
    gateway_address: Option<SocketAddr>,
    log: PathBuf,
    child: Option<Child>,
    /// Resumes a paused process when this one ends: while paused it would not see its standard input close.
    waker: Option<Child>,
}

impl Program {
    /// A program of Holdfast, which logs to `<name>.log` in a folder.
    pub fn new(name: &str, executable: &str, mut arguments: Vec<String>, dir: &Path) -> Self {
        arguments.push("--exit-with-parent".to_owned());
        Self::with_arguments(name, executable, arguments, dir)
    }

    /// Another program of this machine. The kernel kills it when the thread that started it ends.
    ///
    /// # Panics
    /// If `setpriv` is not installed.
    pub fn of_machine(name: &str, file: &Path, arguments: Vec<String>, dir: &Path) -> Self {
        let setpriv = find_installed("setpriv").expect("setpriv, of the package util-linux, is needed");
        let wrapper = [&setpriv.display().to_string(), "--pdeathsig", "KILL"].map(str::to_owned).to_vec();
        let mut program = Self::with_arguments(name, name, arguments, dir).wrapped_by(wrapper);
        program.set_program(Some(file));
        program
    }

    fn with_arguments(name: &str, executable: &str, arguments: Vec<String>, dir: &Path) -> Self {
        Self {
            name: name.to_owned(),
            executable: executable.to_owned(),
            file: None,
            wrapper: Vec::new(),
            arguments,
            environment: Vec::new(),
            address: None,
            gateway_address: None,
            log: dir.join(format!("{name}.log")),
            child: None,
            waker: None,
        }
    }

    /// Sets the address on which it listens.
    #[must_use]
    pub fn listening_on(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Sets the address on which it serves a gateway, too: it is ready when that is.
    #[must_use]
    pub(crate) fn with_gateway_on(mut self, address: Option<SocketAddr>) -> Self {
        self.gateway_address = address;
        self
    }

    /// Sets a command that runs the program, which is appended to it.
    #[must_use]
    pub fn wrapped_by(mut self, wrapper: Vec<String>) -> Self {
        self.wrapper = wrapper;
        self
    }

    /// Its name in the test, such as `nd_1`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens.
    ///
    /// # Panics
    /// If that was not set.
    pub fn address(&self) -> SocketAddr {
        self.address.unwrap_or_else(|| panic!("{} has no address", self.name))
    }

    /// Returns everything that it has written, in all its runs.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sets the value of a flag, for the next start.
    pub fn set_argument(&mut self, flag: &str, value: &str) {
        match self.arguments.iter().position(|argument| argument == flag) {
            Some(at) => value.clone_into(&mut self.arguments[at + 1]),
            None => self.arguments.extend([flag.to_owned(), value.to_owned()]),
        }
    }

    /// Sets the file to run from the next start on; `None` is the program of this build.
    pub fn set_program(&mut self, file: Option<&Path>) {
        self.file = file.map(Path::to_owned);
    }

    /// Sets a variable of its environment, for the next start.
    pub fn set_environment(&mut self, name: &str, value: &str) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Starts it. Does not wait until it is ready.
    ///
    /// # Panics
    /// If it runs already or can't be started.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let folder = self.log.parent().expect("a log is in a folder");
        std::fs::create_dir_all(folder).expect("the folder of the log can be created");
        let log = OpenOptions::new().create(true).append(true).open(&self.log).expect("the log can be written");
        let errors = log.try_clone().expect("the log can be shared");
        let file = self.file.clone().unwrap_or_else(|| executable(&self.executable));
        let mut command = match self.wrapper.split_first() {
            None => Command::new(file),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(file);
                command
            }
        };
        command.args(&self.arguments);
        // The settings of the person who runs the tests are not meant for the processes under test.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"HOLDFAST_")) {
            command.env_remove(name);
        }
        if let Some(directives) = std::env::var_os("HOLDFAST_TEST_LOG") {
            command.env("HOLDFAST_LOG", directives);
        }
        command.env("NO_COLOR", "1").envs(self.environment.iter().cloned());
        command.stdin(Stdio::piped()).stdout(log).stderr(errors);
        let child = command.spawn().unwrap_or_else(|error| panic!("{} can't be started: {error}", self.name));
        self.child = Some(child);
    }

    /// The id of its process, while one runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether it was started, and neither killed nor waited for since.
    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// Whether it is suspended by [`Program::pause`].
    pub fn is_paused(&self) -> bool {
        self.waker.is_some()
    }

    /// `kill -9`, and waits until the process is gone. Returns the time of the signal.
    ///
    /// # Panics
    /// If it does not run.
    pub async fn kill(&mut self) -> Instant {
        let at = Instant::now();
        let child = self.child.as_mut().unwrap_or_else(|| panic!("{} does not run", self.name));
        child.kill().unwrap_or_else(|error| panic!("{} can't be killed: {error}", self.name));
        self.wait_for_exit().await;
        at
    }

    /// SIGTERM, and waits until the process has stopped by itself.
    ///
    /// # Panics
    /// If it does not stop within 30 s.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_for_exit().await
    }

    /// Closes its standard input, on which it has to stop, and waits until it has.
    ///
    /// # Panics
    /// If it does not stop within 30 s.
    pub async fn stop(&mut self) -> ExitStatus {
        drop(self.take_stdin());
        self.wait_for_exit().await
    }

    /// Takes its standard input. Dropping it does the same as the end of this process.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.as_mut()?.stdin.take()
    }

    /// Returns how the process has ended by itself, if it has.
    pub fn try_exit_status(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(status)
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Panics
    /// If it does not end within 30 s.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        assert!(self.child.is_some(), "{} does not run", self.name);
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            if let Some(status) = self.try_exit_status() {
                return status;
            }
            assert!(Instant::now() < deadline, "{} did not stop within {STOP_TIMEOUT:?}", self.name);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Blocks until the process has ended by itself. Returns none, and leaves it running, if that takes too long.
    pub fn wait_for_exit_blocking(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.try_exit_status();
            if status.is_some() || Instant::now() > deadline {
                return status;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// SIGSTOP: suspends the process until [`Program::resume`].
    ///
    /// # Panics
    /// If it does not run.
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
        let mut waker = Command::new("sh");
        waker.args(["-c", "cat; kill -CONT \"$0\"", &self.id().to_string()]).stdin(Stdio::piped());
        self.waker = Some(waker.spawn().expect("there is a shell"));
    }

    /// SIGCONT; does nothing if it is not paused.
    ///
    /// # Panics
    /// If it can't be resumed.
    pub fn resume(&mut self) {
        // Waiting for the waker closes its standard input.
        let ended = self.waker.take().map(|mut waker| waker.wait());
        assert!(ended.is_none_or(|ended| ended.is_ok_and(|ended| ended.success())), "{} did not resume", self.name);
    }

    fn id(&self) -> u32 {
        self.pid().unwrap_or_else(|| panic!("{} does not run", self.name))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.id().cast_signed()).expect("a process id is not zero");
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{} can't be signalled: {error}", self.name));
    }

    /// Checks that the process has not ended by itself.
    ///
    /// # Panics
    /// If it has, with the end of its log.
    pub fn assert_running(&mut self) {
        if let Some(status) = self.try_exit_status() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
            panic!("{} has ended by itself ({status}); {} ends with:\n{tail}", self.name, self.log.display());
        }
    }

    /// Returns nothing if `/readyz` says that it can serve, else the reason why not.
    ///
    /// # Errors
    /// The reason.
    ///
    /// # Panics
    /// If the process has ended by itself.
    pub async fn readiness(&mut self) -> Result<(), String> {
        self.assert_running();
        for address in [self.address()].into_iter().chain(self.gateway_address) {
            check_ready(address).await?;
        }
        Ok(())
    }

    /// As [`Program::readiness`]; none if the process has ended by itself.
    pub async fn readiness_if_running(&mut self) -> Option<Result<(), String>> {
        match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => Some(self.readiness().await),
            _ => None,
        }
    }

    /// Waits until it can serve.
    ///
    /// # Panics
    /// If it ends, or takes longer than two minutes.
    pub async fn wait_ready(&mut self) {
        let what = format!("{} becomes ready", self.name);
        eventually_within(READY_TIMEOUT, &what, async || self.readiness().await).await;
    }

    /// Reads its metrics.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn metrics(&self) -> Result<Metrics, String> {
        Metrics::read(self.address()).await
    }
}

/// Asks at one of the addresses of a process.
async fn check_ready(address: SocketAddr) -> Result<(), String> {
    let probe = RestClient::new(address, "");
    let answer = tokio::time::timeout(PROBE_TIMEOUT, probe.try_send("GET /readyz", &[], bytes::Bytes::new())).await;
    let answer = answer.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())?;
    if answer.status == 200 { Ok(()) } else { Err(answer.text) }
}

impl Drop for Program {
    fn drop(&mut self) {
        let Some(child) = self.child.as_mut() else { return };
        if let Some(mut waker) = self.waker.take() {
            let _ = waker.wait();
        }
        // It fails only for a process that has ended already.
        let _ = child.kill();
        // Its folder is removed next, which must not happen while the process still writes.
        self.wait_for_exit_blocking(KILL_TIMEOUT);
    }
}

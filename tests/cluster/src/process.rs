//! One process of the service: started, killed, paused, stopped.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::eventually::eventually;
use crate::net_ns::NetNs;
use crate::programs::program;

/// How long a process may take to be gone after `kill -9`.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A program with its arguments, and the process that runs it now, if one does. The process ends at the latest with
/// this value, or with the test process: its standard input closes then.
pub struct Process {
    name: String,
    program: &'static str,
    /// Another build of the program, instead of the usual one.
    build: Option<PathBuf>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    address: SocketAddr,
    /// Where it runs, if not beside the test.
    net_ns: Option<Arc<NetNs>>,
    log: PathBuf,
    child: Option<Child>,
    /// Wakes the process when this one ends while it is paused: asleep, it would not see its standard input close.
    waker: Option<std::process::Child>,
    http: reqwest::Client,
}

impl Process {
    pub(crate) fn new(
        name: &str,
        program: &'static str,
        arguments: Vec<String>,
        address: SocketAddr,
        dir: &Path,
        http: reqwest::Client,
    ) -> Self {
        let log = dir.join(format!("{name}.log"));
        let (environment, net_ns) = (Vec::new(), None);
        let name = name.to_owned();
        Self {
            name,
            program,
            build: None,
            arguments,
            environment,
            address,
            net_ns,
            log,
            child: None,
            waker: None,
            http,
        }
    }

    /// The same in a room.
    pub(crate) fn in_net_ns(mut self, room: Option<Arc<NetNs>>) -> Self {
        self.net_ns = room;
        self
    }

    /// Its name in the test, like `nd_1`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything that it has logged, over all its lives.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Puts another value behind a flag, for the next start.
    pub fn set_argument(&mut self, flag: &str, value: &str) {
        match self.arguments.iter().position(|argument| argument == flag) {
            Some(at) => value.clone_into(&mut self.arguments[at + 1]),
            None => self.arguments.extend([flag.to_owned(), value.to_owned()]),
        }
    }

    /// Starts that build of its program from now on, or the usual one.
    pub fn set_program(&mut self, build: Option<&Path>) {
        self.build = build.map(Path::to_owned);
    }

    /// Sets a variable of its environment, for the next start.
    pub fn set_environment(&mut self, name: &str, value: &str) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Starts it. Does not wait until it is ready.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let log = OpenOptions::new().create(true).append(true).open(&self.log).expect("the log can be written");
        let errors = log.try_clone().expect("the log can be shared");
        let build = self.build.clone().unwrap_or_else(|| program(self.program));
        let mut command = match self.net_ns.as_ref().map(|room| room.enter_command()) {
            None => Command::new(build),
            Some(words) => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]).arg(build);
                command
            }
        };
        command.args(&self.arguments).arg("--exit-with-parent");
        // Settings of whoever runs the tests are not meant for the processes under test.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"HOLDFAST_")) {
            command.env_remove(name);
        }
        if let Some(directives) = std::env::var_os("HOLDFAST_TEST_LOG") {
            command.env("HOLDFAST_LOG", directives);
        }
        command.envs(self.environment.iter().cloned());
        command.env("NO_COLOR", "1").stdin(Stdio::piped()).stdout(log).stderr(errors).kill_on_drop(true);
        let child = command.spawn().unwrap_or_else(|error| panic!("{} can't be started: {error}", self.name));
        self.child = Some(child);
    }

    /// The number of the process that runs now, if one does.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Whether it was started, and was neither killed nor waited for since.
    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// Whether it sleeps since [`Process::pause`].
    pub fn is_paused(&self) -> bool {
        self.waker.is_some()
    }

    /// `kill -9`, and waits until the process is gone. Returns when the signal was sent.
    pub async fn kill(&mut self) -> Instant {
        let at = Instant::now();
        let mut child = self.child.take().unwrap_or_else(|| panic!("{} does not run", self.name));
        child.start_kill().unwrap_or_else(|error| panic!("{} can't be killed: {error}", self.name));
        child.wait().await.unwrap_or_else(|error| panic!("the end of {} can't be waited for: {error}", self.name));
        at
    }

    /// SIGTERM, and waits until the process has stopped by itself.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_for_exit().await
    }

    /// How the process has ended by itself, if it has.
    pub fn try_exit_status(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        let status = child.try_wait().ok()??;
        self.child = None;
        Some(status)
    }

    /// Waits until the process has ended by itself.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap_or_else(|| panic!("{} does not run", self.name));
        match tokio::time::timeout(Duration::from_secs(30), child.wait()).await {
            Ok(status) => status.unwrap_or_else(|error| panic!("the end of {} is unknown: {error}", self.name)),
            Err(_) => panic!("{} did not stop within 30 s", self.name),
        }
    }

    /// SIGSTOP: the process does nothing until [`Process::resume`].
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
        let mut waker = std::process::Command::new("sh");
        waker.args(["-c", "cat; kill -CONT \"$0\"", &self.id().to_string()]).stdin(Stdio::piped());
        self.waker = Some(waker.spawn().expect("there is a shell"));
    }

    /// SIGCONT; nothing when it is not paused.
    pub fn resume(&mut self) {
        // Waiting for it closes its standard input.
        let ended = self.waker.take().map(|mut waker| waker.wait());
        assert!(ended.is_none_or(|ended| ended.is_ok_and(|ended| ended.success())), "{} did not wake", self.name);
    }

    fn id(&self) -> u32 {
        self.pid().unwrap_or_else(|| panic!("{} does not run", self.name))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.id().cast_signed()).expect("a process id is not zero");
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{} can't be signalled: {error}", self.name));
    }

    /// Whether it says that it can serve; else why not.
    pub async fn readiness(&mut self) -> Result<(), String> {
        if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
            panic!("{} has ended by itself ({status}); its log is {}", self.name, self.log.display());
        }
        let url = format!("http://{}/readyz", self.address);
        let answer = self.http.get(url).timeout(Duration::from_secs(2)).send().await.map_err(|e| e.to_string())?;
        if answer.status().is_success() { Ok(()) } else { Err(answer.text().await.unwrap_or_default()) }
    }

    /// As [`Process::readiness`]; nothing when the process has ended by itself.
    pub async fn readiness_if_running(&mut self) -> Option<Result<(), String>> {
        match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => Some(self.readiness().await),
            _ => None,
        }
    }

    /// Waits until it can serve.
    pub async fn wait_ready(&mut self) {
        let what = format!("{} becomes ready", self.name);
        eventually(&what, async || self.readiness().await).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(child) = self.child.as_mut() else { return };
        if let Some(mut waker) = self.waker.take() {
            let _ = waker.wait();
        }
        // It fails only for a process that has ended already.
        let _ = child.start_kill();
        // Its folder is removed next, which must not happen under a process that still writes.
        wait_until_exited(child);
    }
}

fn wait_until_exited(child: &mut Child) {
    let began = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && began.elapsed() < KILL_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

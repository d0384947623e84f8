//! The program in processes of its own, and a service for it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use holdfast_testkit::{Standalone, eventually_blocking, scratch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

static SERVER: OnceLock<Standalone> = OnceLock::new();
static NAMES: AtomicU32 = AtomicU32::new(0);

/// The service that the tests share.
pub(crate) fn server() -> &'static Standalone {
    SERVER.get_or_init(start)
}

/// A service of a test's own.
pub(crate) fn start() -> Standalone {
    Standalone::start(&scratch(), &[])
}

/// A name that no other test uses.
pub(crate) fn unique_name(what: &str) -> String {
    format!("{what}-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// The program with these arguments. It takes nothing from the surroundings but what it is told here.
pub(crate) fn holdfast_at<S: AsRef<OsStr>>(server: &Standalone, arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("USER", "ann").env("HOLDFAST_URL", format!("http://{}", server.address()));
    command.env("HOLDFAST_API_KEY", server.secret("demo.key")).env("HOLDFAST_NAMESPACE", "demo");
    command
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct CallResult {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end.
pub(crate) fn run_to_end(mut command: Command) -> CallResult {
    let output = command.stdin(Stdio::null()).output().unwrap();
    CallResult {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Calls the program at the shared service.
pub(crate) fn call(arguments: &[&str]) -> CallResult {
    run_to_end(holdfast_at(server(), arguments))
}

/// As [`call`], for a call that goes well; its results as JSON.
pub(crate) fn values(arguments: &[&str]) -> Vec<Value> {
    let done = call(&[&["--output", "json"], arguments].concat());
    assert_eq!(done.code, 0, "{arguments:?}: {done:?}");
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The one result of a call.
pub(crate) fn value(arguments: &[&str]) -> Value {
    let mut values = values(arguments);
    assert_eq!(values.len(), 1, "{values:?}");
    values.remove(0)
}

/// A call that runs. It is killed with this value.
pub(crate) struct RunningCall {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl RunningCall {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stdin, stdout, stderr }
    }

    /// The next line of its output.
    pub(crate) fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next line of what it says on standard error.
    pub(crate) fn read_error_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Closes its input, which ends a `cat`.
    pub(crate) fn close_input(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Waits for its end; the status and what it said on standard error that was not read yet.
    pub(crate) fn wait_for_end(mut self) -> (ExitStatus, String) {
        let mut status = None;
        eventually_blocking("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (status.unwrap(), said)
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        // It has ended already when its end was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Holds the lock until its input is closed; it has it when this returns.
pub(crate) fn hold_lock(name: &str) -> RunningCall {
    let mut running = RunningCall::start(holdfast_at(server(), &["lock", name, "--", "sh", "-c", "echo locked; cat"]));
    assert_eq!(running.read_line(), "locked");
    running
}

/// Waits until so many wait for the lock.
pub(crate) fn wait_for_waiting(name: &str, count: u64) {
    eventually_blocking(&format!("{count} wait"), || value(&["get", name])["waiting"] == count);
}

//! A holder that is stopped for longer than its time to live.

#[path = "../../examples/fenced_store/store.rs"]
mod store;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use holdfast_testkit::scratch;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{NAMESPACE, in_time, key, session, unique_name, url};
use store::{FencedStore, StoreError};

/// The example `fenced_store` in a process of its own, which is killed with this value.
struct Writer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Writer {
    fn start(file: &str, lock: &str) -> Self {
        let mut command = Command::new(example("fenced_store"));
        command.args([file, lock]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("HOLDFAST_URL", url()).env("HOLDFAST_API_KEY", key()).env("HOLDFAST_NAMESPACE", NAMESPACE);
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout }
    }

    fn write_line(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    /// Its next line.
    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), signal).unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Examples lie in `target/<profile>/examples`, tests in `target/<profile>/deps`.
fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(
        path.is_file(),
        "{} is missing: `cargo build --examples` makes it, and so does a run of all tests",
        path.display()
    );
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_stopped_learns_of_its_loss_first_and_the_store_refuses_its_token() {
    let (file, name) = (scratch(), unique_name("stopped"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let mut writer = Writer::start(file.to_str().unwrap(), &name);
    let held = writer.read_line();
    let old: u64 = held.strip_prefix("holding with token ").expect(&held).parse().unwrap();
    writer.write_line("write first");
    assert_eq!(writer.read_line(), format!("written with token {old}"));

    writer.signal(Signal::STOP);
    let other = session("other").await;
    let guard = in_time("the lock of the stopped one", other.mutex(name.as_str()).lock()).await.unwrap();
    let mut store = FencedStore::open(&file).unwrap();
    let token = guard.check().unwrap();
    assert!(token > old);
    assert_eq!(store.get(token).unwrap(), "first");
    store.put(token, "second").unwrap();

    // What it is to do lies there when it wakes.
    writer.write_line("write third");
    writer.write_line("insist third");
    writer.write_line("read");
    writer.signal(Signal::CONT);
    let told = writer.read_line();
    assert!(told.starts_with("not written: the hold was lost: its session has ended"), "{told}");
    assert_eq!(writer.read_line(), format!("not written: token {old} is stale: {token} was seen"));
    assert_eq!(writer.read_line(), format!("not read: token {old} is stale: {token} was seen"));
    assert_eq!(store.get(token).unwrap(), "second");
    assert!(matches!(store.put(old, "x"), Err(StoreError::Stale { given, seen }) if (given, seen) == (old, token)));
    guard.release().await.unwrap();
}

#[test]
fn readers_do_not_shut_each_other_out_but_writers_before_them() {
    let file = scratch();
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let mut store = FencedStore::open(&file).unwrap();
    store.put(5, "five\nlines").unwrap();
    assert_eq!(store.get(8).unwrap(), "five\nlines");
    assert_eq!(store.get(6).unwrap(), "five\nlines", "an earlier reader may still read");
    assert!(matches!(store.put(7, "x"), Err(StoreError::Stale { given: 7, seen: 8 })));
    store.put(9, "nine").unwrap();
    assert!(matches!(store.get(8), Err(StoreError::Stale { given: 8, seen: 9 })));
}

//! The shell blocks of the pages on each kind of thing, run as a reader pastes them: in order, with bash, against a
//! process with demo data. Only the address differs, since that process listens on a free port. Programs that the pages
//! take for the reader's own are scripts here.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use holdfast_testkit::{Standalone, executable, find_installed, scratch};

/// The address that the pages name.
const ADDRESS: &str = "127.0.0.1:8080";
/// What every error of the service has in its `type`. curl ends with 0 in spite of it.
const PROBLEM: &str = "urn:holdfast:error:";
/// In a block that each of the parties runs: which of them it is.
const SHARD: &str = "$SHARD";
/// As the block with `$SHARD` says.
const PARTIES: usize = 4;
/// Pages are read one at a time: they name the same owners, and what an owner waits for on one page would close cycles of
/// waits with another page.
static TURN: Mutex<()> = Mutex::new(());
/// How long a block may take, in seconds. Those that wait for a time need a few.
const BLOCK_TIMEOUT: &str = "120";
/// The reader's programs. The deployment goes on when it is asked to stop, until the lock is taken from it; it ends by
/// itself after half a minute, so that a test that fails leaves nothing behind.
const PROGRAMS: [(&str, &str); 5] = [
    ("compute", "exit 0"),
    ("make", "exit 0"),
    ("next-job", "echo the job runs"),
    ("report.sh", "echo the report runs"),
    ("deploy.sh", "trap 'echo told to stop' USR1; for tick in $(seq 300); do sleep 0.1; done"),
];

/// The reader's terminal.
struct Terminal {
    /// Its folder has the data directory, as that of the project has, and the programs.
    folder: PathBuf,
    server: Standalone,
}

impl Terminal {
    /// Everything is written before the first process starts, so that none inherits a program open for writing.
    fn open() -> Self {
        let (folder, data_dir) = (scratch(), scratch());
        fs::create_dir_all(&folder).unwrap();
        for (name, commands) in PROGRAMS {
            let file = folder.join(name);
            fs::write(&file, format!("#!/bin/sh\n{commands}\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        symlink(executable("holdfast").canonicalize().unwrap(), folder.join("holdfast")).unwrap();
        symlink(&data_dir, folder.join("data")).unwrap();
        Self { folder, server: Standalone::start(&data_dir, &[]) }
    }

    /// Runs a block as one of several parties. What fails ends it, and what it started in the background ends with it.
    fn run(&self, block: &str, party: usize) -> Output {
        let block = block.replace(ADDRESS, &self.server.address().to_string());
        let path = format!("{}:{}", self.folder.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("timeout");
        command.args([BLOCK_TIMEOUT, "bash", "-c", &format!("set -e; exec 2>&1\n{block}\nwait")]);
        command.env_clear().env("PATH", path).env("HOME", &self.folder).env("SHARD", party.to_string());
        command.env("HOLDFAST_URL", self.server.url()).env("HOLDFAST_NAMESPACE", "demo");
        command.env("HOLDFAST_API_KEY", self.server.secret("demo.key"));
        command.current_dir(&self.folder).stdin(Stdio::null()).output().unwrap()
    }
}

fn terminal() -> &'static Terminal {
    static TERMINAL: OnceLock<Terminal> = OnceLock::new();
    TERMINAL.get_or_init(Terminal::open)
}

/// Returns the shell blocks of a page.
fn blocks(page: &str) -> Vec<&str> {
    let after = page.split("\n```sh\n").skip(1);
    after.map(|rest| rest.split_once("\n```").expect("a block has an end").0).collect()
}

/// Runs each block of a page. It has to end with 0, without an error, and to say what the page says of it. There is one
/// list of words for each block.
fn assert_blocks_work(page: &str, promised: &[&[&str]]) {
    if find_installed("curl").is_none() {
        return eprintln!("SKIPPED: the shell blocks of the documentation: curl is needed");
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let blocks = blocks(page);
    assert_eq!(blocks.len(), promised.len(), "each block is listed here with what it says");
    for (block, promised) in blocks.into_iter().zip(promised) {
        let parties = if block.contains(SHARD) { PARTIES } else { 1 };
        let run = |party| move || terminal().run(block, party);
        let outputs: Vec<Output> = thread::scope(|scope| {
            let running: Vec<_> = (0..parties).map(|party| scope.spawn(run(party))).collect();
            running.into_iter().map(|party| party.join().unwrap()).collect()
        });
        for output in outputs {
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && !said.contains(PROBLEM), "{block}\n{}:\n{said}", output.status);
            let mut rest = said.as_str();
            for words in *promised {
                let found = rest.split_once(words);
                rest = found.unwrap_or_else(|| panic!("{words} is missing, or not in order:\n{block}\n{said}")).1;
            }
        }
    }
}

#[test]
fn latches() {
    assert_blocks_work(
        include_str!("../../../../docs/latches.md"),
        &[
            &[
                r#""counted":2"#,
                r#""counted":0"#,
                r#""success":true"#,
                "TIMED_OUT",
                r#""outcome":"COMPLETED""#,
                r#""latches":["#,
            ],
            &["COMPLETED", "send the report"],
        ],
    );
}

#[test]
fn semaphores() {
    assert_blocks_work(
        include_str!("../../../../docs/semaphores.md"),
        &[&["EXHAUSTED", r#""current":true"#, r#""asked":1"#, "a customer waits", r#""semaphores":["#], &["licences"]],
    );
}

#[test]
fn pools() {
    assert_blocks_work(
        include_str!("../../../../docs/pools.md"),
        &[&["EXHAUSTED", r#""current":true"#, r#""asked":1"#, "a release", r#""pools":["#], &["databases"]],
    );
}

#[test]
fn conditions() {
    assert_blocks_work(
        include_str!("../../../../docs/conditions.md"),
        &[&[r#""awaiting":1"#, r#""signalled":1"#, r#""woken":"SIGNALLED""#], &["woke 1"]],
    );
}

#[test]
fn barriers() {
    assert_blocks_work(
        include_str!("../../../../docs/barriers.md"),
        &[
            &["WAITING", "TRIPPED", "WAITING", "BROKEN", r#""ended":"BROKEN""#, "WITHDRAW", r#""barriers":["#],
            &["TRIPPED", "TRIPPED", "TRIPPED"],
        ],
    );
}

#[test]
fn asking_back() {
    assert_blocks_work(
        include_str!("../../../../docs/asking-back.md"),
        &[
            &[r#""asked":1"#, "release_requested", r#""asked":1"#, r#""process_id":"bob""#, r#""released":true"#],
            // The signal ends a script that has not begun to handle it; then nobody is left to be forced.
            &["is asked"],
            &[r#""success":true"#, r#""released":true"#, "TRANSITION", r#""success":true"#],
            &["the report runs", "exit status 75: it ran already"],
        ],
    );
}

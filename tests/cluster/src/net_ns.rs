//! Namespaces of the kernel for a process: a network, a file system or both, apart from the machine's.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What a room has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NsKind {
    /// Its network.
    Network,
    /// Its network and its mounts.
    NetworkAndMounts,
}

/// Namespaces that last as long as this value, or as the process that holds them: it ends with the test process,
/// whatever ends that. All links, routes and mounts in a room go with it.
#[derive(Debug)]
pub(crate) struct NetNs {
    holder: Child,
    kind: NsKind,
}

/// Whether rooms can be made here; else why not.
pub fn check_net_ns_support() -> Result<(), String> {
    let room = NetNs::create(NsKind::NetworkAndMounts)?;
    room.run("ip", &["link", "add", "try-1", "type", "veth", "peer", "name", "try-2"])?;
    room.run("ip", &["rule", "show"]).map(|_| ())
}

/// Whether rooms are missing here, with a notice that the test is skipped.
pub fn skip_without_net_ns(test: &str) -> bool {
    match check_net_ns_support() {
        Ok(()) => false,
        Err(reason) => {
            eprintln!("SKIPPED: {test}: namespaces can't be made here (root and iproute2 are needed): {reason}");
            true
        }
    }
}

impl NetNs {
    pub(crate) fn create(kind: NsKind) -> Result<Self, String> {
        let mut command = Command::new("unshare");
        command.arg("--net");
        if kind == NsKind::NetworkAndMounts {
            command.arg("--mount");
        }
        command.args(["sh", "-c", "echo ready; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let holder = command.stderr(Stdio::null()).spawn().map_err(|error| format!("unshare: {error}"))?;
        let mut room = Self { holder, kind };
        let mut line = String::new();
        let output = room.holder.stdout.take().ok_or("the holder has no output")?;
        BufReader::new(output).read_line(&mut line).map_err(|error| error.to_string())?;
        if line.trim() != "ready" {
            return Err("unshare is refused".to_owned());
        }
        room.run("ip", &["link", "set", "dev", "lo", "up"])?;
        Ok(room)
    }

    /// The process that holds it.
    pub(crate) fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// The command that runs what follows it inside.
    pub(crate) fn enter_command(&self) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned(), format!("--target={}", self.pid()), "--net".to_owned()];
        if self.kind == NsKind::NetworkAndMounts {
            words.push("--mount".to_owned());
        }
        words
    }

    /// A path inside, as it is reached from outside.
    pub(crate) fn path(&self, inside: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid()));
        root.join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// Runs a command inside.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let mut words = self.enter_command();
        words.push(program.to_owned());
        words.extend(arguments.iter().map(|&argument| argument.to_owned()));
        run_command(&words)
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // It fails only for a process that has ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Runs a command; its output, or what it complains of.
pub(crate) fn run_command(words: &[String]) -> Result<String, String> {
    let output = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", words[0]))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{}: {}: {}", words.join(" "), output.status, text(&output.stderr)))
    }
}

//! Namespaces of the kernel, which give a process a network of its own, or a network and mounts.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What is separate from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NsKind {
    /// The network.
    Network,
    /// The network and the mounts.
    NetworkAndMounts,
}

/// Namespaces that exist as long as this value, or as the process that holds them, which ends when the test process does.
/// All links, routes and mounts in them go with them.
#[derive(Debug)]
pub(crate) struct NetNs {
    holder: Child,
    kind: NsKind,
}

/// Checks whether namespaces can be created here.
///
/// # Errors
/// The reason why not.
pub fn check_net_ns_support() -> Result<(), String> {
    let net_ns = NetNs::create(NsKind::NetworkAndMounts)?;
    net_ns.run("ip", &["link", "add", "try-1", "type", "veth", "peer", "name", "try-2"])?;
    net_ns.run("ip", &["rule", "show"]).map(|_| ())
}

/// Whether namespaces can't be created here; says on standard error that the test is skipped then.
pub fn skip_without_net_ns(test: &str) -> bool {
    match check_net_ns_support() {
        Ok(()) => false,
        Err(reason) => {
            eprintln!("SKIPPED: {test}: namespaces can't be created here (root and iproute2 are needed): {reason}");
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
        let mut net_ns = Self { holder, kind };
        let mut line = String::new();
        let output = net_ns.holder.stdout.take().ok_or("the holder has no output")?;
        BufReader::new(output).read_line(&mut line).map_err(|error| error.to_string())?;
        if line.trim() != "ready" {
            return Err("unshare is refused".to_owned());
        }
        net_ns.run("ip", &["link", "set", "dev", "lo", "up"])?;
        Ok(net_ns)
    }

    /// The process that holds it.
    pub(crate) fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// The command that runs a command inside, which is appended to it.
    pub(crate) fn enter_command(&self) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned(), format!("--target={}", self.pid()), "--net".to_owned()];
        if self.kind == NsKind::NetworkAndMounts {
            words.push("--mount".to_owned());
        }
        words
    }

    /// The path from outside of a path inside.
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

/// Runs a command. Returns its output.
///
/// # Errors
/// Its standard error.
pub fn run_command(words: &[String]) -> Result<String, String> {
    let output = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", words[0]))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{}: {}: {}", words.join(" "), output.status, text(&output.stderr)))
    }
}

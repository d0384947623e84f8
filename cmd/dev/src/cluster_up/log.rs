//! One log of several processes: every line starts with the name of its process.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Style};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Lines waiting to be written. If a slow terminal fills the buffer, the children wait.
const MAX_WAITING_LINES: usize = 1_024;
/// Longer lines are split, so that no child can exhaust this process's memory.
const MAX_LINE_BYTES: u64 = 16 * 1024;
/// Timeout for writing the remaining lines at the end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a line of this program waits for a stopped terminal; after that, stopping the cluster takes priority.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
const OWN_NAME: &str = "dev";
const COLOURS: [AnsiColor; 6] =
    [AnsiColor::Cyan, AnsiColor::Yellow, AnsiColor::Green, AnsiColor::Magenta, AnsiColor::Blue, AnsiColor::BrightRed];

enum Line {
    Plain(String),
    Process { process: usize, text: String },
    Own(String),
}

/// Accepts lines of all processes. Each child gets a clone, which is cheap.
pub(super) struct Log {
    lines: mpsc::Sender<Line>,
    written: oneshot::Receiver<()>,
}

/// The part of the log for one process.
#[derive(Clone)]
pub(super) struct ProcessLog {
    lines: mpsc::Sender<Line>,
    process: usize,
}

impl Log {
    /// Starts a log for processes with these names.
    pub(super) fn start(names: &[String]) -> Self {
        let (lines, waiting) = mpsc::channel(MAX_WAITING_LINES);
        let prefixes = Prefixes::new(names, colours_wanted());
        // Writing to a terminal may block, which a worker of the runtime must not.
        let (all_written, written) = oneshot::channel();
        thread::spawn(move || {
            write_all(waiting, &prefixes);
            // The receiver may have timed out because of a slow terminal.
            let _ = all_written.send(());
        });
        Self { lines, written }
    }

    /// Returns the log of the process at this position in the names.
    pub(super) fn for_process(&self, process: usize) -> ProcessLog {
        ProcessLog { lines: self.lines.clone(), process }
    }

    /// Writes a line of this program itself.
    pub(super) async fn write_line(&self, text: String) {
        let _ = self.lines.send_timeout(Line::Own(text), WRITE_TIMEOUT).await;
    }

    /// Writes a text without a prefix, to be copied.
    pub(super) async fn write_plain(&self, text: String) {
        let _ = self.lines.send_timeout(Line::Plain(text), WRITE_TIMEOUT).await;
    }

    /// Waits until all lines are written.
    pub(super) async fn finish(self) {
        drop(self.lines);
        // The terminal may be stopped; the end must not wait for it.
        let _ = timeout(FINISH_TIMEOUT, self.written).await;
    }
}

impl ProcessLog {
    /// Writes a line of this program about the process.
    pub(super) async fn write_line(&self, text: String) {
        let _ = self.lines.send_timeout(Line::Own(text), WRITE_TIMEOUT).await;
    }

    /// Copies the output of the process until it closes its end.
    pub(super) async fn copy(self, output: impl AsyncRead + Unpin) {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut output).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let text = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
                    let _ = self.lines.send(Line::Process { process: self.process, text }).await;
                }
            }
        }
    }
}

fn colours_wanted() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn write_all(mut waiting: mpsc::Receiver<Line>, prefixes: &Prefixes) {
    while let Some(line) = waiting.blocking_recv() {
        // If no process reads the log, the cluster continues; Ctrl-C still reaches it.
        let _ = writeln!(io::stdout().lock(), "{}", prefixes.prefixed(&line));
    }
}

/// The prefixes of each process's lines.
struct Prefixes {
    processes: Vec<String>,
    own: String,
}

impl Prefixes {
    fn new(names: &[String], colours: bool) -> Self {
        let width = names.iter().map(|name| name.len()).chain([OWN_NAME.len()]).max().unwrap_or(0);
        let prefix = |name: &str, style: Style| {
            if colours { format!("{style}{name:<width$} |{style:#} ") } else { format!("{name:<width$} | ") }
        };
        let styles = COLOURS.iter().cycle().map(|colour| colour.on_default());
        Self {
            processes: names.iter().zip(styles).map(|(name, style)| prefix(name, style)).collect(),
            own: prefix(OWN_NAME, Style::new().bold()),
        }
    }

    fn prefixed(&self, line: &Line) -> String {
        match line {
            Line::Plain(text) => text.clone(),
            Line::Own(text) => format!("{}{text}", self.own),
            Line::Process { process, text } => format!("{}{text}", self.processes[*process]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["nd_1", "gateway"].map(str::to_owned).to_vec()
    }

    #[test]
    fn lines_begin_with_the_name_of_their_process_in_one_column() {
        let prefixes = Prefixes::new(&names(), false);
        assert_eq!(prefixes.prefixed(&Line::Process { process: 0, text: "a".to_owned() }), "nd_1    | a");
        assert_eq!(prefixes.prefixed(&Line::Process { process: 1, text: "b".to_owned() }), "gateway | b");
        assert_eq!(prefixes.prefixed(&Line::Own("c".to_owned())), "dev     | c");
        assert_eq!(prefixes.prefixed(&Line::Plain("d".to_owned())), "d");
    }

    #[test]
    fn only_the_names_are_coloured_and_each_in_its_own() {
        let prefixes = Prefixes::new(&names(), true);
        assert_eq!(
            prefixes.prefixed(&Line::Process { process: 0, text: "a".to_owned() }),
            "\u{1b}[36mnd_1    |\u{1b}[0m a"
        );
        assert_ne!(prefixes.processes[0][..5], prefixes.processes[1][..5]);
    }

    #[tokio::test]
    async fn output_is_copied_by_lines_whatever_its_bytes_are() {
        let (lines, mut waiting) = mpsc::channel(10);
        ProcessLog { lines, process: 0 }.copy(&b"one\r\ntwo\n\xff\n\nlast"[..]).await;
        let mut copied = Vec::new();
        while let Some(Line::Process { text, .. }) = waiting.recv().await {
            copied.push(text);
        }
        assert_eq!(copied, ["one", "two", "\u{fffd}", "", "last"]);
    }
}

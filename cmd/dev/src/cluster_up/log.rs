//! One log of several processes: every line with the name of its process in front.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Style};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Lines waiting to be written. When a slow terminal fills it, the children wait.
const MAX_WAITING_LINES: usize = 1_024;
/// Longer lines are broken, so that no child can make this process grow.
const MAX_LINE_BYTES: u64 = 16 * 1024;
/// How long what is left may take to be written at the end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a line of this program waits for a terminal that is stopped; then stopping the cluster matters more.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
const OWN_NAME: &str = "dev";
const COLOURS: [AnsiColor; 6] =
    [AnsiColor::Cyan, AnsiColor::Yellow, AnsiColor::Green, AnsiColor::Magenta, AnsiColor::Blue, AnsiColor::BrightRed];

enum Line {
    Plain(String),
    Process { process: usize, text: String },
    Own(String),
}

/// Takes lines from everywhere. A cheap clone goes to each child.
pub(super) struct Log {
    lines: mpsc::Sender<Line>,
    written: oneshot::Receiver<()>,
}

/// The part of the log that belongs to one process.
#[derive(Clone)]
pub(super) struct ProcessLog {
    lines: mpsc::Sender<Line>,
    process: usize,
}

impl Log {
    /// A log of the processes of these names.
    pub(super) fn start(names: &[String]) -> Self {
        let (lines, waiting) = mpsc::channel(MAX_WAITING_LINES);
        let prefixes = Prefixes::new(names, colours_wanted());
        // Writing to a terminal may block, which no worker of the runtime should.
        let (all_written, written) = oneshot::channel();
        thread::spawn(move || {
            write_all(waiting, &prefixes);
            // Nobody waits for it any more when the terminal took too long.
            let _ = all_written.send(());
        });
        Self { lines, written }
    }

    /// The part of the process with that place among the names.
    pub(super) fn for_process(&self, process: usize) -> ProcessLog {
        ProcessLog { lines: self.lines.clone(), process }
    }

    /// A line of this program itself.
    pub(super) async fn write_line(&self, text: String) {
        let _ = self.lines.send_timeout(Line::Own(text), WRITE_TIMEOUT).await;
    }

    /// A text that is written as it is, to be copied.
    pub(super) async fn write_plain(&self, text: String) {
        let _ = self.lines.send_timeout(Line::Plain(text), WRITE_TIMEOUT).await;
    }

    /// Waits until all is written.
    pub(super) async fn finish(self) {
        drop(self.lines);
        // The terminal may be stopped; the end must not wait for it.
        let _ = timeout(FINISH_TIMEOUT, self.written).await;
    }
}

impl ProcessLog {
    /// A line about the process, by this program.
    pub(super) async fn write_line(&self, text: String) {
        let _ = self.lines.send_timeout(Line::Own(text), WRITE_TIMEOUT).await;
    }

    /// Copies everything that the process writes, until it closes its end.
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
        // When nobody reads the log the cluster goes on all the same; Ctrl-C still reaches it.
        let _ = writeln!(io::stdout().lock(), "{}", prefixes.prefixed(&line));
    }
}

/// What stands in front of the lines of each process.
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

//! Chromium and what drives it, as a child process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use holdfast_testkit::{find_installed, scratch};
use thirtyfour::{ChromiumLikeCapabilities, DesiredCapabilities, WebDriver};

const DRIVER: &str = "chromedriver";
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Ends the driver, and with it the browser, when the input closes: that is when the tests end, in whatever way.
const SUPERVISOR_SCRIPT: &str = r#""$@" & child=$!; cat >/dev/null; kill "$child" 2>/dev/null; wait "$child""#;
const LOG: &str = "driver.log";
const STARTED_MESSAGE: &str = "was started successfully on port ";
/// It draws a port and takes it later; another program may have taken it by then.
const PORT_TAKEN_MESSAGE: &str = "port not available";
const MAX_STARTS: usize = 5;
const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A sandbox within a container needs rights that tests do not have; nothing but the console is opened.
const FLAGS: [&str; 7] = [
    "--headless=new",
    "--disable-extensions",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
];

/// A driver that listens on a free port, for one browser.
pub(crate) struct Chromium {
    supervisor: Child,
    port: u16,
    folder: PathBuf,
    browser: PathBuf,
}

impl Chromium {
    /// None where there is no browser or nothing to drive it with.
    pub(crate) fn start() -> Option<Self> {
        let browser = BROWSERS.iter().find_map(|name| find_installed(name))?;
        let driver = find_installed(DRIVER)?;
        let folder = scratch();
        fs::create_dir_all(&folder).expect("the scratch folder can be written");
        for _ in 0..MAX_STARTS {
            let mut supervisor = supervise(&driver, &folder);
            if let Some(port) = wait_for_port(&folder.join(LOG)) {
                return Some(Self { supervisor, port, folder, browser });
            }
            drop(supervisor.stdin.take());
            supervisor.wait().expect("it ends");
        }
        panic!("{DRIVER} found no free port in {MAX_STARTS} starts");
    }

    /// Opens a window of a browser that knows nothing yet.
    pub(crate) async fn open(&self) -> WebDriver {
        let mut wanted = DesiredCapabilities::chrome();
        wanted.set_binary(&self.browser.to_string_lossy()).expect("a path is a text");
        let profile = format!("--user-data-dir={}", self.folder.join("profile").display());
        for flag in FLAGS.into_iter().chain([profile.as_str()]) {
            wanted.add_arg(flag).expect("a flag is a text");
        }
        WebDriver::new(format!("http://127.0.0.1:{}", self.port), wanted).await.expect("the browser starts")
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        // It ends once its children have; what it ends with is no matter.
        let _ = self.supervisor.wait();
    }
}

/// Starts a driver that ends when this process does.
fn supervise(driver: &Path, folder: &Path) -> Child {
    let log = File::create(folder.join(LOG)).expect("the log can be written");
    let mut supervisor = Command::new("sh");
    supervisor.args(["-c", SUPERVISOR_SCRIPT, "keeper"]).arg(driver).arg("--port=0");
    supervisor.env("TMPDIR", folder).env("HOME", folder);
    supervisor.stdin(Stdio::piped()).stdout(log).stderr(Stdio::null());
    supervisor.spawn().expect("there is a shell")
}

/// The port at which the driver listens; none when another program has taken it.
fn wait_for_port(log: &Path) -> Option<u16> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let said = fs::read_to_string(log).unwrap_or_default();
        let port = said.split_once(STARTED_MESSAGE).and_then(|(_, rest)| rest.split_once('.')?.0.parse().ok());
        if port.is_some() || said.contains(PORT_TAKEN_MESSAGE) {
            return port;
        }
        assert!(Instant::now() < deadline, "{DRIVER} does not start: {said}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

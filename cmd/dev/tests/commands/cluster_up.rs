//! `dev cluster up` with programs of the test's own in place of node and gateway: how it starts, watches and stops
//! processes.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use axum::routing::{get, post};
use axum::{Json, Router};
use holdfast_testkit::free_address;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdout, Command};

use crate::running::with_fork_lock;

/// Longer than anything here takes.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Says who it is, ends when told to or when its input ends, as the real programs do.
const PROGRAM: &str = r#"#!/bin/sh
trap 'echo terminated; exit 0' TERM
echo "pid $$ runs: $(basename "$0") $*"
exec 3<&0
cat <&3 >/dev/null &
wait $!
echo "input ended"
"#;

/// Programs beside each other, and ports for a cluster of one node.
struct TestEnv {
    dir: TempDir,
    node_port: u16,
    gateway_port: u16,
}

impl TestEnv {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        with_fork_lock(|| fs::copy(env!("CARGO_BIN_EXE_dev"), dir.path().join("dev")).unwrap());
        let bench = Self { dir, node_port: free_address().port(), gateway_port: free_address().port() };
        bench.program("holdfast-node", PROGRAM);
        bench.program("holdfast-gateway", PROGRAM);
        bench
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.dir.path().join(name);
        with_fork_lock(|| fs::write(&path, script).unwrap());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn data_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    fn command(&self, nodes: u16) -> Command {
        let mut command = Command::new(self.dir.path().join("dev"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HOLDFAST_")) {
            command.env_remove(name);
        }
        command.args(["cluster", "up", "--nodes", &nodes.to_string(), "--data-dir"]).arg(self.data_dir());
        command.args(["--base-port", &self.node_port.to_string()]);
        command.args(["--listen", &format!("127.0.0.1:{}", self.gateway_port)]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    async fn start_error(&self, nodes: u16) -> String {
        let output = with_fork_lock(|| self.command(nodes).spawn().unwrap()).wait_with_output().await.unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is started");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Starts a cluster of one node.
    fn start(&self) -> RunningCluster {
        self.start_with(&[])
    }

    fn start_with(&self, flags: &[&str]) -> RunningCluster {
        let mut child = with_fork_lock(|| self.command(1).args(flags).spawn().unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        RunningCluster { child, lines, seen: Vec::new() }
    }

    /// Starts a cluster and answers in place of its processes until the line that works is printed.
    async fn start_until_ready(&self) -> RunningCluster {
        let mut up = self.start();
        up.wait_for("gateway | pid").await;
        up.wait_for("nd_1    | pid").await;
        serve(self.node_port).await;
        serve(self.gateway_port).await;
        up.wait_for("curl ").await;
        up
    }
}

/// A running `dev cluster up`.
struct RunningCluster {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    seen: Vec<String>,
}

impl RunningCluster {
    /// Reads on until some line, seen before or coming, contains the text; answers it.
    async fn wait_for(&mut self, text: &str) -> String {
        loop {
            if let Some(line) = self.seen.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            match tokio::time::timeout(MAX_WAIT, self.lines.next_line()).await {
                Ok(Ok(Some(line))) => self.seen.push(line),
                other => panic!("no line contains {text:?} ({other:?}):\n{}", self.seen.join("\n")),
            }
        }
    }

    /// The process whose line begins with that name.
    async fn pid_of(&mut self, name: &str) -> Pid {
        let line = self.wait_for(&format!("{name} | pid ")).await;
        let number = line.split(' ').skip_while(|word| *word != "pid").nth(1).unwrap();
        Pid::from_raw(number.parse().unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    async fn exit_code(&mut self) -> Option<i32> {
        while let Ok(Ok(Some(line))) = tokio::time::timeout(MAX_WAIT, self.lines.next_line()).await {
            self.seen.push(line);
        }
        tokio::time::timeout(MAX_WAIT, self.child.wait()).await.unwrap().unwrap().code()
    }

    fn line_index(&self, text: &str) -> usize {
        let place = self.seen.iter().position(|line| line.contains(text));
        place.unwrap_or_else(|| panic!("no line contains {text:?}:\n{}", self.seen.join("\n")))
    }
}

/// Answers whatever a first start asks.
async fn serve(port: u16) {
    let answer = || async { Json(json!({"id": "0000000000000001", "api_key": "hf_k1_secret"})) };
    let routes =
        Router::new().route("/readyz", get(|| async { "ready\n" })).route("/{*any}", post(answer).patch(answer));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
}

/// Waits for the end of a process that is not ours; whether anybody has taken note of it does not matter.
async fn eventually_gone(pid: Pid) {
    let runs = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    };
    let gone = async {
        while runs() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, gone).await.unwrap();
}

/// Asks as a scenario does; returns the answer, and the connection as long as which the node is down.
async fn request_kill(socket: &Path, node: &str) -> (Value, BufReader<UnixStream>) {
    let mut connection = BufReader::new(UnixStream::connect(socket).await.unwrap());
    connection.write_all(format!("{node}\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(MAX_WAIT, connection.read_line(&mut answer)).await.unwrap().unwrap();
    (serde_json::from_str(&answer).unwrap(), connection)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_first_start_ends_with_a_line_that_works_and_ctrl_c_stops_the_gateway_first() {
    let bench = TestEnv::new();
    let mut up = bench.start_until_ready().await;
    let data = bench.data_dir().canonicalize().unwrap();
    for secret in ["operator.token", "cluster.secret", "demo.key"] {
        assert_eq!(mode(&data.join(secret)), 0o600, "{secret}");
    }
    let node = up.wait_for("nd_1    | pid").await;
    let flags = format!(
        "holdfast-node --node-id nd_1 --data-dir {0}/nd_1 --cluster-config {0}/cluster_config.json \
         --cluster-secret-file {0}/cluster.secret --operator-token-file {0}/operator.token --exit-with-parent",
        data.display()
    );
    assert!(node.ends_with(&flags), "{node}\n{flags}");

    up.signal(Signal::INT);
    assert_eq!(up.exit_code().await, Some(0));
    assert!(up.line_index("gateway has stopped") < up.line_index("nd_1    | terminated"), "{:#?}", up.seen);
    assert!(up.line_index("nd_1    | terminated") < up.line_index("nd_1 has stopped"), "{:#?}", up.seen);
    assert!(!up.seen.iter().any(|line| line.contains('\u{1b}')), "no colours where no terminal is");
}

#[tokio::test]
async fn nodes_serve_clients_without_another_process_if_asked_to() {
    let bench = TestEnv::new();
    let mut up = bench.start_with(&["--gateways-in-nodes"]);
    let node = up.wait_for("nd_1 | pid").await;
    let gateway = format!("127.0.0.1:{}", bench.gateway_port);
    assert!(node.ends_with(&format!(" --gateway-listen {gateway}")), "{node}");
    serve(bench.gateway_port).await;
    let works = up.wait_for("curl ").await;
    assert!(works.contains(&gateway), "{works}");
    let config = fs::read_to_string(bench.data_dir().join("cluster_config.json")).unwrap();
    assert!(config.contains(&format!("\"gateway_address\": \"{gateway}\"")), "{config}");
    up.signal(Signal::INT);
    assert_eq!(up.exit_code().await, Some(0));
    assert!(!up.seen.iter().any(|line| line.contains("gateway | ")), "{:#?}", up.seen);
}

#[tokio::test]
async fn a_process_that_dies_is_reported_and_the_others_go_on() {
    let bench = TestEnv::new();
    let mut up = bench.start_until_ready().await;
    let node = up.pid_of("nd_1   ").await;
    kill_process(node, Signal::KILL).unwrap();
    let report = up.wait_for("nd_1 HAS ENDED").await;
    assert!(report.contains("signal: 9") && report.contains("not started again"), "{report}");
    let gateway = up.pid_of("gateway").await;
    test_kill_process(gateway).unwrap();
    kill_process(gateway, Signal::KILL).unwrap();
    assert_eq!(up.exit_code().await, Some(1), "nothing is left to watch");
}

#[tokio::test]
async fn a_node_that_a_scenario_has_killed_is_started_again_when_the_scenario_is_gone() {
    let bench = TestEnv::new();
    let mut up = bench.start_until_ready().await;
    let socket = bench.data_dir().join("dev.sock");
    assert_eq!(mode(&socket), 0o600, "nobody else may kill nodes");
    let node = up.pid_of("nd_1   ").await;
    for no_node in ["nd_2", "gateway", ""] {
        let (answer, _) = request_kill(&socket, no_node).await;
        assert_eq!(answer, json!({"refused": "there is no such node"}));
    }
    test_kill_process(node).unwrap();

    let (answer, scenario) = request_kill(&socket, "nd_1").await;
    assert_eq!((&answer["killed"], answer["pid"].to_string()), (&json!("nd_1"), node.to_string()));
    eventually_gone(node).await;
    let report = up.wait_for("nd_1 was killed").await;
    assert!(report.contains("signal: 9"), "{report}");
    let (answer, _) = request_kill(&socket, "nd_1").await;
    assert_eq!(answer, json!({"refused": "a node is missing for another scenario"}));
    assert!(!up.seen.iter().any(|line| line.contains("started again")), "{:#?}", up.seen);

    drop(scenario);
    up.wait_for("nd_1 is started again").await;
    up.seen.clear();
    let next = up.pid_of("nd_1   ").await;
    assert_ne!(next, node);
    up.signal(Signal::INT);
    assert_eq!(up.exit_code().await, Some(0));
}

#[tokio::test]
async fn a_cluster_stops_while_a_scenario_has_killed_a_node() {
    let bench = TestEnv::new();
    let mut up = bench.start_until_ready().await;
    let (answer, _scenario) = request_kill(&bench.data_dir().join("dev.sock"), "nd_1").await;
    assert_eq!(answer["killed"], "nd_1");
    up.wait_for("nd_1 was killed").await;
    up.signal(Signal::INT);
    assert_eq!(up.exit_code().await, Some(0));
}

#[tokio::test]
async fn processes_end_with_a_tool_that_is_killed() {
    let bench = TestEnv::new();
    let mut up = bench.start_until_ready().await;
    let (node, gateway) = (up.pid_of("nd_1   ").await, up.pid_of("gateway").await);
    up.signal(Signal::KILL);
    eventually_gone(node).await;
    eventually_gone(gateway).await;
}

#[tokio::test]
async fn a_second_signal_kills_what_does_not_stop() {
    let bench = TestEnv::new();
    bench.program("holdfast-gateway", &PROGRAM.replace("exit 0' TERM", "wait' TERM"));
    let mut up = bench.start_until_ready().await;
    up.signal(Signal::TERM);
    up.wait_for("gateway | terminated").await;
    up.signal(Signal::TERM);
    assert_eq!(up.exit_code().await, Some(0));
    up.line_index("gateway has stopped (signal: 9");
}

#[tokio::test]
async fn a_gateway_that_dies_at_its_start_ends_everything() {
    let bench = TestEnv::new();
    bench.program("holdfast-gateway", "#!/bin/sh\necho 'something is wrong' >&2\nexit 3\n");
    let mut up = bench.start();
    up.wait_for("nd_1    | pid").await;
    serve(bench.node_port).await;
    assert_eq!(up.exit_code().await, Some(1));
    up.line_index("gateway | something is wrong");
    up.line_index("gateway HAS ENDED by itself (exit status: 3)");
    up.line_index("nd_1 has stopped");
}

#[tokio::test]
async fn ports_in_use_are_all_named_before_anything_is_started() {
    let bench = TestEnv::new();
    let _node = TcpListener::bind(("127.0.0.1", bench.node_port)).unwrap();
    let _gateway = TcpListener::bind(("127.0.0.1", bench.gateway_port)).unwrap();
    let error = bench.start_error(1).await;
    for port in [bench.node_port, bench.gateway_port] {
        assert!(error.contains(&format!("127.0.0.1:{port} (")) && error.contains("in use"), "{error}");
    }
    assert!(!bench.data_dir().exists(), "nothing is written either");
}

#[tokio::test]
async fn a_directory_of_another_cluster_is_refused_and_left_alone() {
    let bench = TestEnv::new();
    let mut up = bench.start_until_ready().await;
    up.signal(Signal::TERM);
    assert_eq!(up.exit_code().await, Some(0));
    let error = bench.start_error(3).await;
    assert!(error.contains("--nodes 1"), "{error}");
    let [node_port, gateway_port] = [(); 2].map(|()| free_address().port());
    let other_ports = TestEnv { node_port, gateway_port, dir: bench.dir };
    let error = other_ports.start_error(1).await;
    assert!(error.contains("--base-port"), "{error}");
    fs::remove_file(other_ports.data_dir().join("cluster_config.json")).unwrap();
    let error = other_ports.start_error(1).await;
    assert!(error.contains("another --data-dir"), "{error}");
}

#[tokio::test]
async fn a_missing_program_is_named_with_how_to_build_it() {
    let bench = TestEnv::new();
    fs::remove_file(bench.dir.path().join("holdfast-gateway")).unwrap();
    let error = bench.start_error(1).await;
    assert!(error.contains("holdfast-gateway") && error.contains("make build"), "{error}");
}

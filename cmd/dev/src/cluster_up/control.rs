//! Kills a node for a scenario, over a socket in the directory of the cluster.
//!
//! A scenario kills no process itself: the id that it knows may belong to another process by then. This program is the
//! parent of the nodes, so an id stays that of its node until this program has seen the end of it.

use std::fs;
use std::future::pending;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy, sink};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::cluster::Cluster;
use super::log::Log;
use super::{READY_TIMEOUT, ready};

/// The socket, in the directory of the cluster.
pub(crate) const SOCKET_FILE: &str = "dev.sock";
/// Only its owner may connect.
const SOCKET_MODE: u32 = 0o600;
/// The directory in which the socket is made. With `NEW_SOCKET` it is as long as `SOCKET_FILE`: the system allows a
/// socket only about a hundred bytes of path.
const PRIVATE_DIR: &str = ".dev";
const PRIVATE_DIR_MODE: u32 = 0o700;
const NEW_SOCKET: &str = "new";
/// A request follows the connection at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// More than the longest id of a node.
const MAX_REQUEST_BYTES: u64 = 1024;
/// Keeps failed attempts to accept a connection from using up a processor.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The socket, if there could be one.
pub(super) struct Control(Option<UnixListener>);

impl Control {
    /// Makes the socket. A cluster runs without one, too.
    pub(super) async fn listen(dir: &Path, log: &Log) -> Self {
        match bind(dir) {
            Ok(listener) => Self(Some(listener)),
            Err(error) => {
                let path = dir.join(SOCKET_FILE);
                log.write_line(format!("scenarios can kill no node: {} can't be made: {error}", path.display())).await;
                Self(None)
            }
        }
    }

    /// Answers scenarios, and never returns.
    pub(super) async fn serve(&self, cluster: &Cluster, http: &reqwest::Client, log: &Log) {
        let Some(listener) = &self.0 else { return pending().await };
        // The cluster must go on without the node, so one node is down at a time.
        let turn = Mutex::new(());
        let mut connections = FuturesUnordered::new();
        loop {
            tokio::select! {
                stream = accept(listener) => connections.push(handle(stream, cluster, http, log, &turn)),
                Some(()) = connections.next() => {}
            }
        }
    }
}

/// Makes the socket where only its owner can reach it, and moves it to its place once only its owner may connect.
fn bind(dir: &Path) -> io::Result<UnixListener> {
    let private = dir.join(PRIVATE_DIR);
    // An earlier run may have ended halfway.
    match fs::remove_dir_all(&private) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::DirBuilder::new().mode(PRIVATE_DIR_MODE).create(&private)?;
    let path = private.join(NEW_SOCKET);
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(SOCKET_MODE))?;
    // A socket of an earlier run is useless: the ports were free, so no other program runs this cluster.
    fs::rename(&path, dir.join(SOCKET_FILE))?;
    fs::remove_dir(&private)?;
    Ok(listener)
}

/// Returns the next connection. There may be none for a while, for want of file handles for instance.
async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Reads the id of a node, kills it, answers, and starts it again when the other side closes the connection, as it also
/// does when its process ends.
async fn handle(stream: UnixStream, cluster: &Cluster, http: &reqwest::Client, log: &Log, turn: &Mutex<()>) {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    let mut limited = (&mut stream).take(MAX_REQUEST_BYTES);
    if !matches!(timeout(REQUEST_TIMEOUT, limited.read_line(&mut request)).await, Ok(Ok(_))) {
        return;
    }
    let Some(node) = cluster.node(request.trim()) else {
        return answer(&mut stream, &json!({"refused": "there is no such node"})).await;
    };
    let Ok(_turn) = turn.try_lock() else {
        return answer(&mut stream, &json!({"refused": "a node is missing for another scenario"})).await;
    };
    let Some(pid) = node.crash().await else {
        return answer(&mut stream, &json!({"refused": "it does not run"})).await;
    };
    answer(&mut stream, &json!({"killed": node.name, "pid": pid})).await;
    // Nothing more is expected. Whether this ends by an error makes no difference.
    let _ = copy(&mut stream, &mut sink()).await;
    node.restart().await;
    // Until it is ready, it is as good as down. If it never is, the next scenario sees that and asks for no other.
    ready::wait(http, node, log, Instant::now() + READY_TIMEOUT).await;
}

async fn answer(stream: &mut BufReader<UnixStream>, answer: &Value) {
    // The other side may be gone; reading from it tells.
    let _ = stream.write_all(format!("{answer}\n").as_bytes()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_its_owners_and_replaces_that_of_an_earlier_run() {
        let dir = tempfile::tempdir().unwrap();
        drop(bind(dir.path()).unwrap());
        fs::create_dir(dir.path().join(PRIVATE_DIR)).unwrap();
        let listener = bind(dir.path()).unwrap();
        let path = dir.path().join(SOCKET_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        let _connected = UnixStream::connect(&path).await.unwrap();
        accept(&listener).await;
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left behind");
    }
}

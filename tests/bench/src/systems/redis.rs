//! A Redis of this machine that syncs before it answers, or that writes nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use holdfast_testkit::{Program, Scratch, free_address};

use crate::clients::RedisClient;
use crate::cluster::{find_installed, pids_of};

const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// One Redis, with `appendfsync always` or without a file. The process ends with it.
pub struct Redis {
    writes: bool,
    process: Program,
    client: redis::Client,
    // After the process: its data goes when it is gone.
    _dir: Scratch,
}

impl Redis {
    /// Starts it and waits until it answers. It syncs before each answer, or writes nothing.
    ///
    /// # Errors
    /// When it is not installed, or does not become ready.
    pub async fn start(data_dir: &Path, writes: bool) -> Result<Self> {
        let program = find_installed("redis-server", "redis-server")?;
        let dir = Scratch::new_in(data_dir);
        let address = free_address();
        let flags = [
            ("--bind", "127.0.0.1".to_owned()),
            ("--port", address.port().to_string()),
            ("--dir", dir.path().display().to_string()),
            ("--appendonly", if writes { "yes" } else { "no" }.to_owned()),
            ("--appendfsync", "always".to_owned()),
            ("--save", String::new()),
        ];
        let arguments = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let mut process = Program::of_machine("redis", &program, arguments, dir.path());
        process.start();
        let client = redis::Client::open(format!("redis://{address}/"))?;
        let mut redis = Self { writes, process, client, _dir: dir };
        redis.wait_ready().await?;
        Ok(redis)
    }

    pub(crate) fn writes(&self) -> bool {
        self.writes
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while let Err(error) = self.connect("ready".to_owned()).await {
            self.process.assert_running();
            if Instant::now() > deadline {
                bail!("Redis is not ready: {error:#}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    pub(crate) async fn connect(&self, owner: String) -> Result<RedisClient> {
        RedisClient::connect(&self.client, owner).await
    }

    pub(crate) fn pids(&self) -> Vec<(String, i32)> {
        pids_of([&self.process])
    }
}

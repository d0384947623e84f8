//! Redis, with the usual lock: `SET NX PX` with a value of its own, and a script that compares before it deletes or
//! extends.

use anyhow::Result;
use redis::Script;
use redis::aio::MultiplexedConnection;

use super::{LockName, TTL_MS};

const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
const EXTEND: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0";

/// A client of Redis.
pub struct RedisClient {
    connection: MultiplexedConnection,
    owner: String,
    /// Distinguishes the holds of this client.
    last: u64,
    release: Script,
    extend: Script,
}

impl RedisClient {
    /// Connects.
    pub(crate) async fn connect(server: &redis::Client, owner: String) -> Result<Self> {
        let connection = server.get_multiplexed_async_connection().await?;
        Ok(Self { connection, owner, last: 0, release: Script::new(RELEASE), extend: Script::new(EXTEND) })
    }

    pub(crate) async fn acquire(&mut self, lock: &LockName) -> Result<Option<u64>> {
        self.last += 1;
        let mut set = redis::cmd("SET");
        set.arg(key(lock)).arg(self.value(self.last)).arg("NX").arg("PX").arg(TTL_MS);
        let answer: Option<String> = set.query_async(&mut self.connection).await?;
        Ok(answer.map(|_| self.last))
    }

    pub(crate) async fn release(&mut self, lock: &LockName, token: u64) -> Result<bool> {
        let value = self.value(token);
        let ended: u64 = self.release.key(key(lock)).arg(value).invoke_async(&mut self.connection).await?;
        Ok(ended == 1)
    }

    pub(crate) async fn extend(&mut self, lock: &LockName, token: u64) -> Result<bool> {
        let value = self.value(token);
        let held: u64 = self.extend.key(key(lock)).arg(value).arg(TTL_MS).invoke_async(&mut self.connection).await?;
        Ok(held == 1)
    }

    pub(crate) async fn get(&mut self, lock: &LockName) -> Result<bool> {
        let owner: Option<String> = redis::cmd("GET").arg(key(lock)).query_async(&mut self.connection).await?;
        Ok(owner.is_some())
    }

    fn value(&self, token: u64) -> String {
        format!("{}-{token}", self.owner)
    }
}

fn key(lock: &LockName) -> String {
    format!("{}/{}", lock.namespace, lock.path.join("/"))
}

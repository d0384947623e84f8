//! The flags of the service: its address, the operator token, the files of its cluster, and the form of results.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::api::{self, BaseUrl};
use crate::output::Format;

/// Flags that every subcommand accepts.
#[derive(Debug, Args)]
pub struct ServiceArgs {
    /// Address of the service, for subcommands that call it.
    #[arg(long, env = "HOLDFAST_URL", default_value = "http://127.0.0.1:8080", global = true)]
    pub url: BaseUrl,
    /// File with the certificate authorities in PEM to trust for https://; those of this machine when absent.
    #[arg(long, env = "HOLDFAST_CA_FILE", value_name = "FILE", global = true)]
    pub ca_file: Option<PathBuf>,
    /// The operator token; the variable keeps it out of the list of processes. When absent, the program reads
    /// ./data/operator.token (of holdfast-standalone) or ./data/cluster/operator.token (of `dev cluster up`), uses the
    /// one that the service accepts, and reports which on standard error.
    #[arg(long, env = "HOLDFAST_OPERATOR_TOKEN", hide_env_values = true, value_name = "TOKEN", global = true)]
    pub operator_token: Option<String>,
    /// Form of the results: text for people, or one JSON value a line for programs. Some subcommands have only one.
    #[arg(long, env = "HOLDFAST_OUTPUT", value_enum, default_value_t = Format::Text, global = true)]
    pub output: Format,
}

/// Flags that select a cluster and authenticate to its nodes, for subcommands that call these, or have another program
/// do so.
#[derive(Debug, Args)]
pub struct ClusterFiles {
    /// A config of the cluster, to find its nodes. The nodes return the latest one; each change is also written to this
    /// file, for processes that start later.
    #[arg(
        long,
        env = "HOLDFAST_CLUSTER_CONFIG",
        default_value = "data/cluster/cluster_config.json",
        value_name = "FILE"
    )]
    pub cluster_config: PathBuf,
    /// File with the cluster secret.
    #[arg(
        long,
        env = "HOLDFAST_CLUSTER_SECRET_FILE",
        default_value = "data/cluster/cluster.secret",
        value_name = "FILE"
    )]
    pub cluster_secret_file: PathBuf,
}

impl ServiceArgs {
    /// Starts the TLS proxy if the address is `https://`, and makes `url` point to it.
    ///
    /// # Errors
    /// If the address has no valid host, no authority is trusted, or no port is free.
    pub async fn start_tls_proxy(&mut self) -> Result<()> {
        self.url = api::plaintext_url(&self.url, self.ca_file.as_deref()).await?;
        Ok(())
    }
}

/// Checks, for the tests of a program, that each flag has an environment variable and a help text.
///
/// # Panics
/// If a flag has none.
pub fn assert_flags_documented(command: &clap::Command) {
    for argument in command.get_arguments() {
        let (name, id) = (command.get_name(), argument.get_id());
        assert!(argument.get_help().is_some(), "{name} --{id} has no help");
        let variable = argument.get_env().unwrap_or_else(|| panic!("{name} --{id} has no variable"));
        assert!(variable.to_string_lossy().starts_with("HOLDFAST_"), "{name} --{id}");
    }
    command.get_subcommands().for_each(assert_flags_documented);
}

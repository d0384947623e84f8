//! The service's address and the caller's key: from flags, the environment, or a profile, in this order.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use holdfast_client::Client;
use serde::Deserialize;

use crate::output::Format;

const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// Flags of every subcommand.
#[derive(Clone, Debug, Args)]
pub(crate) struct Global {
    /// A gateway; several are separated by commas, and any that responds is used. [default: http://127.0.0.1:8080]
    #[arg(long, env = "HOLDFAST_URL", global = true, value_name = "URL", value_delimiter = ',')]
    url: Vec<String>,
    /// The API key; prefer the variable, which keeps it out of the process list.
    #[arg(long, env = "HOLDFAST_API_KEY", hide_env_values = true, global = true, value_name = "KEY")]
    api_key: Option<String>,
    /// The namespace of the locks.
    #[arg(long, short, env = "HOLDFAST_NAMESPACE", global = true, value_name = "NAME")]
    namespace: Option<String>,
    /// A file with the CA certificate, in PEM, of the gateways' certificates, besides those that the system trusts.
    #[arg(long, env = "HOLDFAST_CA_FILE", global = true, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The profile of the configuration file. [default: the file's default_profile, or its only one]
    #[arg(long, env = "HOLDFAST_PROFILE", global = true, value_name = "NAME")]
    profile: Option<String>,
    /// The configuration file. [default: ~/.config/holdfast/config.toml]
    #[arg(long, env = "HOLDFAST_CONFIG", global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The format of results.
    #[arg(long, env = "HOLDFAST_OUTPUT", value_enum, default_value_t = Format::Text, global = true)]
    pub(crate) output: Format,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The profile to use if none is selected and there are several.
    default_profile: Option<String>,
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
}

/// Defaults for flags.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    /// One gateway, or several separated by commas.
    url: Option<String>,
    api_key: Option<String>,
    namespace: Option<String>,
    ca_file: Option<PathBuf>,
}

impl std::fmt::Debug for Profile {
    /// Omits the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Profile({:?}, {:?})", self.url, self.namespace)
    }
}

/// The service to call, and the identity of the caller.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) client: Client,
    /// The URLs of the gateways.
    pub(crate) urls: Vec<String>,
    pub(crate) format: Format,
    api_key: String,
    ca_certificate: Option<String>,
    namespace: Option<String>,
}

impl Settings {
    pub(crate) fn new(global: Global) -> Result<Self> {
        let profile = profile(&global)?;
        let given = Some(global.url.join(",")).filter(|url| !url.is_empty()).or(profile.url);
        let urls: Vec<String> =
            given.as_deref().unwrap_or(DEFAULT_URL).split(',').map(|url| url.trim().to_owned()).collect();
        let api_key = global.api_key.filter(|key| !key.is_empty()).or(profile.api_key);
        let api_key = api_key.context("no API key: set HOLDFAST_API_KEY, or api_key in a profile")?;
        let ca_file = global.ca_file.or(profile.ca_file);
        let read = |file: PathBuf| std::fs::read_to_string(&file).with_context(|| file.display().to_string());
        let ca_certificate = ca_file.map(read).transpose()?;
        let client = connect(&urls, &api_key, ca_certificate.as_ref())?;
        let namespace = global.namespace.filter(|name| !name.is_empty()).or(profile.namespace);
        Ok(Self { client, urls, format: global.output, api_key, ca_certificate, namespace })
    }

    /// Returns the namespace of the locks.
    pub(crate) fn namespace(&self) -> Result<String> {
        let missing = "no namespace: give --namespace, set HOLDFAST_NAMESPACE, or set namespace in a profile";
        self.namespace.clone().context(missing)
    }

    /// Creates a client for only one of the gateways.
    pub(crate) fn client_of(&self, url: &str) -> Result<Client> {
        connect(&[url.to_owned()], &self.api_key, self.ca_certificate.as_ref())
    }
}

fn connect(urls: &[String], api_key: &str, ca_certificate: Option<&String>) -> Result<Client> {
    let builder = urls.iter().fold(Client::builder(), |builder, url| builder.gateway(url)).api_key(api_key.trim());
    let builder = ca_certificate.into_iter().fold(builder, |builder, pem| builder.ca_certificate(pem));
    Ok(builder.build()?)
}

fn profile(global: &Global) -> Result<Profile> {
    let path = match &global.config {
        Some(path) => path.clone(),
        None => match std::env::var_os("HOME") {
            Some(home) => Path::new(&home).join(".config/holdfast/config.toml"),
            None => return Ok(Profile::default()),
        },
    };
    let config = match std::fs::read_to_string(&path) {
        Ok(text) => toml::from_str(&text).map_err(|error| anyhow!("{}: {error}", path.display()))?,
        Err(error) if error.kind() == ErrorKind::NotFound && global.config.is_none() => Config::default(),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    select_profile(config, global.profile.as_deref()).with_context(|| path.display().to_string())
}

fn select_profile(config: Config, name: Option<&str>) -> Result<Profile> {
    let only = || config.profiles.keys().next().filter(|_| config.profiles.len() == 1).map(String::as_str);
    let Some(name) = name.or(config.default_profile.as_deref()).or_else(only) else { return Ok(Profile::default()) };
    match config.profiles.get(name) {
        Some(profile) => Ok(profile.clone()),
        None => {
            let known: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
            bail!("there is no profile {name:?}; there are: {}", known.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "default_profile = 'work'\n\
        [profiles.work]\nurl = 'http://a:1, http://b:2'\napi_key = 'hf_secret'\nnamespace = 'jobs'\n\
        [profiles.home]\nurl = 'http://c:3'\n";

    #[test]
    fn the_named_profile_counts_and_else_the_default() {
        let config = || toml::from_str::<Config>(CONFIG).unwrap();
        assert_eq!(select_profile(config(), None).unwrap().namespace.as_deref(), Some("jobs"));
        assert_eq!(select_profile(config(), Some("home")).unwrap().url.as_deref(), Some("http://c:3"));
        let error = select_profile(config(), Some("other")).unwrap_err().to_string();
        assert!(error.contains("home, work"), "{error}");
        assert!(select_profile(Config::default(), None).unwrap().url.is_none());
        let only = toml::from_str::<Config>("[profiles.a]\nurl = 'http://a:1'").unwrap();
        assert_eq!(select_profile(only, None).unwrap().url.as_deref(), Some("http://a:1"));
        let two = toml::from_str::<Config>("[profiles.a]\nurl = 'http://a:1'\n[profiles.b]").unwrap();
        assert!(select_profile(two, None).unwrap().url.is_none(), "nobody said which");
    }

    #[test]
    fn what_is_misspelt_is_refused_and_keys_are_not_shown() {
        assert!(toml::from_str::<Config>("[profiles.a]\nurll = 'x'").is_err());
        let config = toml::from_str::<Config>(CONFIG).unwrap();
        assert!(!format!("{config:?}").contains("hf_secret"));
    }
}

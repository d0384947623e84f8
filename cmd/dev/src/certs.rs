//! `dev certs`: certificates for TLS experiments, signed by their own authority. Not for production: the authority's
//! key is stored beside them.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use holdfast_operator::output::{self, Format};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;
use time::{Duration, OffsetDateTime};

/// An authority outlives the certificates that it signs.
const AUTHORITY_DAYS: i64 = 3_650;
const AUTHORITY: &str = "ca";

/// Flags of `dev certs`.
#[derive(Debug, Args)]
pub(crate) struct CertsArgs {
    /// Directory of the files. An existing authority in it signs new certificates, which replace the old ones.
    #[arg(long, env = "HOLDFAST_CERTS_DIR", default_value = "./data/certs", value_name = "DIR")]
    out: PathBuf,
    /// A host name or address for the server's certificate; may be repeated.
    #[arg(long = "host", env = "HOLDFAST_CERTS_HOSTS", value_delimiter = ',', default_values = ["127.0.0.1", "::1", "localhost"])]
    hosts: Vec<String>,
    /// Days for which the certificates are valid.
    #[arg(long, env = "HOLDFAST_CERTS_DAYS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=3_650))]
    days: u16,
}

/// Creates the files and prints how to use them.
pub(crate) fn run(format: Format, args: &CertsArgs) -> Result<()> {
    let dir = std::path::absolute(&args.out).with_context(|| format!("--out {}", args.out.display()))?;
    fs::create_dir_all(&dir).with_context(|| format!("can't make {}", dir.display()))?;
    let authority = authority(&dir)?;
    let server = leaf("holdfast", &args.hosts, args.days)?;
    issue(&dir, "server", server, &authority)?;
    issue(&dir, "client", leaf("holdfast client", &[], args.days)?, &authority)?;
    match format {
        Format::Json => {
            let file = |name: &str| dir.join(name).display().to_string();
            output::print(json!({
                "ca": file("ca.pem"),
                "server": {"cert": file("server.pem"), "key": file("server-key.pem")},
                "client": {"cert": file("client.pem"), "key": file("client-key.pem")},
            }))
        }
        Format::Text => output::print(usage(&dir, &args.hosts)),
    }
}

fn usage(dir: &Path, hosts: &[String]) -> String {
    let (dir, hosts) = (dir.display(), hosts.join(", "));
    format!(
        "Certificates for {hosts} are in {dir}.\n\nServe callers with TLS:\n\n  \
         holdfast-standalone --tls-cert-file {dir}/server.pem --tls-key-file {dir}/server-key.pem\n\n\
         Call it:\n\n  curl --cacert {dir}/ca.pem https://127.0.0.1:8080/readyz\n  \
         HOLDFAST_URL=https://127.0.0.1:8080 HOLDFAST_CA_FILE={dir}/ca.pem dev scenario-fencing\n\n\
         Let nodes and gateways vouch for one another, with these flags for each of them:\n\n  \
         --cluster-tls-cert-file {dir}/server.pem --cluster-tls-key-file {dir}/server-key.pem \
         --cluster-tls-ca-file {dir}/ca.pem\n\n\
         client.pem is for callers of a process that has --tls-client-ca-file {dir}/ca.pem. Making the certificates \
         again replaces them; running processes take the new ones."
    )
}

/// Returns the existing authority, or creates one.
fn authority(dir: &Path) -> Result<Issuer<'static, KeyPair>> {
    let (cert_file, key_file) = (dir.join("ca.pem"), dir.join("ca-key.pem"));
    if cert_file.exists() {
        let key = fs::read_to_string(&key_file).with_context(|| format!("can't read {}", key_file.display()))?;
        let key = KeyPair::from_pem(&key).with_context(|| format!("{} holds no key", key_file.display()))?;
        let cert = fs::read_to_string(&cert_file).with_context(|| format!("can't read {}", cert_file.display()))?;
        return Issuer::from_ca_cert_pem(&cert, key)
            .with_context(|| format!("{} holds no authority of that key", cert_file.display()));
    }
    let mut params = params("holdfast authority for trying", &[], AUTHORITY_DAYS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().context("no key can be made")?;
    let cert = params.self_signed(&key).context("the authority can't be made")?;
    write(dir, AUTHORITY, &cert.pem(), &key)?;
    Ok(Issuer::new(params, key))
}

/// Creates the parameters of a certificate for both sides of a connection, since nodes are clients of one another.
fn leaf(name: &str, hosts: &[String], days: u16) -> Result<CertificateParams> {
    let mut params = params(name, hosts, days.into())?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn params(name: &str, hosts: &[String], days: i64) -> Result<CertificateParams> {
    // An address can be written in several ways; certificates use one.
    let hosts = hosts.iter().map(|host| host.parse::<IpAddr>().map_or_else(|_| host.clone(), |ip| ip.to_string()));
    let mut params =
        CertificateParams::new(hosts.collect::<Vec<_>>()).context("--host: is neither name nor address")?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = OffsetDateTime::now_utc();
    // Clocks of other hosts may be slightly behind.
    params.not_before = now - Duration::hours(1);
    params.not_after = now + Duration::days(days);
    Ok(params)
}

fn issue(dir: &Path, name: &str, params: CertificateParams, authority: &Issuer<'static, KeyPair>) -> Result<()> {
    let key = KeyPair::generate().context("no key can be made")?;
    let cert = params.signed_by(&key, authority).context("the certificate can't be signed")?;
    write(dir, name, &cert.pem(), &key)
}

/// Writes the key first: a process that reads the files in between rejects the mismatched pair and keeps its old one.
fn write(dir: &Path, name: &str, cert: &str, key: &KeyPair) -> Result<()> {
    write_atomically(&dir.join(format!("{name}-key.pem")), &key.serialize_pem(), 0o600)?;
    write_atomically(&dir.join(format!("{name}.pem")), cert, 0o644)
}

/// Writes a file atomically.
fn write_atomically(path: &Path, text: &str, mode: u32) -> Result<()> {
    let draft = path.with_extension("new");
    // A draft of an interrupted attempt would keep its mode.
    let _ = fs::remove_file(&draft);
    let written = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft);
    written
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&draft, path))
        .with_context(|| format!("can't write {}", path.display()))
}

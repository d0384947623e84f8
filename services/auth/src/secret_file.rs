//! Secrets in files, readable by their owner only.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::{ClusterSecret, MalformedClusterSecret, MalformedOperatorToken, OperatorToken, Secret};

/// Larger than any secret. A longer file is not a secret file.
pub const MAX_SECRET_FILE_BYTES: u64 = 4_096;
/// Permissions of the group and of all other users.
const GROUP_OTHER_MODE_BITS: u32 = 0o077;

/// A secret read from a file.
#[derive(Clone, Debug)]
pub struct SecretFile {
    /// The content without white space around it.
    pub secret: Secret,
    /// Whether other users than the owner may open the file; callers should warn about it.
    pub is_exposed: bool,
    path: PathBuf,
}

impl SecretFile {
    /// Parses the content as the secret of a cluster.
    ///
    /// # Errors
    /// When it is something else; the error names the file.
    pub fn cluster_secret(&self) -> Result<ClusterSecret, SecretFileError> {
        ClusterSecret::from_hex(self.secret.expose())
            .map_err(|reason| SecretFileError::NotAClusterSecret { path: self.path.clone(), reason })
    }

    /// Parses the content as an operator token.
    ///
    /// # Errors
    /// When it is something else; the error names the file.
    pub fn operator_token(&self) -> Result<OperatorToken, SecretFileError> {
        OperatorToken::parse(self.secret.expose())
            .map_err(|reason| SecretFileError::NotAnOperatorToken { path: self.path.clone(), reason })
    }
}

/// A secret file that cannot be used. The message never contains the secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// The file exists already.
    #[error("secret file {}: exists already and is not overwritten; remove it first if it is no longer used", .0.display())]
    Exists(PathBuf),
    /// The file is empty.
    #[error("secret file {}: is empty", .0.display())]
    Empty(PathBuf),
    /// The content is not a Holdfast secret.
    #[error("secret file {}: is not a short text; it should hold one secret and nothing else", .0.display())]
    NotASecret(PathBuf),
    /// The content is no cluster secret.
    #[error("{}: {reason}", path.display())]
    NotAClusterSecret {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: MalformedClusterSecret,
    },
    /// The content is no operator token.
    #[error("{}: {reason}", path.display())]
    NotAnOperatorToken {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: MalformedOperatorToken,
    },
    /// An I/O error.
    #[error("secret file {}: cannot be {action}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action: `read` or `written`.
        action: &'static str,
        /// The error of the system.
        reason: io::Error,
    },
}

/// Writes a new secret file with a newline at the end and mode 0600: after a crash it exists completely or not at all.
/// The content is on disk when this returns.
///
/// # Errors
/// When the file exists (it stays unchanged) or cannot be written.
pub fn create_secret_file(path: &Path, content: &Secret) -> Result<(), SecretFileError> {
    let failed = |reason| SecretFileError::Io { path: path.to_owned(), action: "written", reason };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".secret-")
        .permissions(fs::Permissions::from_mode(0o600))
        .tempfile_in(directory)
        .map_err(failed)?;
    writeln!(file, "{}", content.expose()).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist_noclobber(path).map_err(|refused| match refused.error.kind() {
        io::ErrorKind::AlreadyExists => SecretFileError::Exists(path.to_owned()),
        _ => failed(refused.error),
    })?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}

/// Reads a secret file.
///
/// # Errors
/// When it cannot be read, is empty, or is not a short text.
pub fn read_secret_file(path: &Path) -> Result<SecretFile, SecretFileError> {
    let failed = |reason| SecretFileError::Io { path: path.to_owned(), action: "read", reason };
    let file = File::open(path).map_err(failed)?;
    let is_exposed = file.metadata().map_err(failed)?.permissions().mode() & GROUP_OTHER_MODE_BITS != 0;
    let mut bytes = Vec::new();
    file.take(MAX_SECRET_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| SecretFileError::NotASecret(path.to_owned()))?.trim();
    if bytes.len() as u64 > MAX_SECRET_FILE_BYTES || text.contains(char::is_whitespace) || text.contains('\0') {
        return Err(SecretFileError::NotASecret(path.to_owned()));
    }
    if text.is_empty() {
        return Err(SecretFileError::Empty(path.to_owned()));
    }
    Ok(SecretFile { secret: Secret::new(text), is_exposed, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_reads_back_and_belongs_to_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("operator.token");
        create_secret_file(&path, &Secret::new("xyzzy")).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap(), "xyzzy\n");
        let read = read_secret_file(&path).unwrap();
        assert_eq!((read.secret.expose(), read.is_exposed), ("xyzzy", false));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn a_file_with_another_secret_is_refused_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let paths = ["cluster.secret", "operator.token"].map(|name| directory.path().join(name));
        create_secret_file(&paths[0], &ClusterSecret::generate().unwrap().to_hex()).unwrap();
        create_secret_file(&paths[1], OperatorToken::generate().unwrap().reveal()).unwrap();
        let [cluster, operator] = paths.map(|path| read_secret_file(&path).unwrap());
        assert!(cluster.cluster_secret().is_ok() && operator.operator_token().is_ok());
        let refused = operator.cluster_secret().unwrap_err().to_string();
        assert!(refused.contains("operator.token: "), "{refused}");
        let refused = cluster.operator_token().unwrap_err().to_string();
        assert!(refused.contains("cluster.secret: "), "{refused}");
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("operator.token");
        create_secret_file(&path, &Secret::new("first")).unwrap();
        let refused = create_secret_file(&path, &Secret::new("second")).unwrap_err();
        assert!(matches!(refused, SecretFileError::Exists(_)));
        assert!(refused.to_string().contains("operator.token"));
        assert_eq!(read_secret_file(&path).unwrap().secret.expose(), "first");
    }

    #[test]
    fn a_file_that_others_may_open_is_flagged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.secret");
        create_secret_file(&path, &Secret::new("xyzzy")).unwrap();
        for exposed in [0o640, 0o604, 0o660] {
            fs::set_permissions(&path, fs::Permissions::from_mode(exposed)).unwrap();
            assert!(read_secret_file(&path).unwrap().is_exposed);
        }
    }

    #[test]
    fn files_that_hold_no_secret_are_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("demo.key");
        let refused = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            read_secret_file(&path).unwrap_err()
        };
        assert!(matches!(refused(b" \n"), SecretFileError::Empty(_)));
        assert!(matches!(refused(b"two words"), SecretFileError::NotASecret(_)));
        assert!(matches!(refused(b"\xff\xfe"), SecretFileError::NotASecret(_)));
        assert!(matches!(refused(&[b'a'; 5_000]), SecretFileError::NotASecret(_)));
        assert!(refused(b"").to_string().contains("demo.key"));

        fs::remove_file(&path).unwrap();
        let missing = read_secret_file(&path).unwrap_err().to_string();
        assert!(missing.contains("demo.key") && missing.contains("cannot be read"), "{missing}");
        let nowhere = create_secret_file(&directory.path().join("no/where"), &Secret::new("x")).unwrap_err();
        assert!(nowhere.to_string().contains("cannot be written"), "{nowhere}");
    }
}

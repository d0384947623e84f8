//! What operations answer, ready to be shown. Each view serializes as its JSON form in the contract.

use holdfast_core::{Account, AccountStatus, ApiKey, Limits, LockState, Metadata, Mode, Namespace, Phase, Reason};
use serde::{Serialize, Serializer};

use super::Timestamp;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Brings the next page; absent on the last.
    pub next_page_token: Option<String>,
}

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccountView {
    /// 16 lower-case hex digits.
    pub id: String,
    /// Trimmed and lower-cased.
    pub email: String,
    /// As given.
    pub full_name: String,
    /// How many namespaces it may have.
    pub max_number_of_namespaces: u32,
    /// Its limits.
    pub limits: Limits,
    /// Whether it may call.
    #[serde(serialize_with = "status_as_name")]
    pub status: AccountStatus,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl From<Account> for AccountView {
    fn from(account: Account) -> Self {
        Self {
            id: account.id.to_string(),
            email: account.email,
            full_name: account.full_name,
            max_number_of_namespaces: account.max_number_of_namespaces,
            limits: account.limits,
            status: account.status,
            created_at: Timestamp(account.created_at_ms),
            updated_at: Timestamp(account.updated_at_ms),
        }
    }
}

/// An API key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApiKeyView {
    /// The public half.
    pub key_id: String,
    /// Whose: 16 lower-case hex digits.
    pub account_id: String,
    /// As given.
    pub description: String,
    /// Public names of what it allows.
    pub scopes: Vec<&'static str>,
    /// The namespaces it may be used for; absent for all.
    pub namespaces: Option<Vec<String>>,
    /// Refused from then on.
    pub expires_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
}

impl From<ApiKey> for ApiKeyView {
    fn from(key: ApiKey) -> Self {
        Self {
            key_id: key.key_id,
            account_id: key.account.to_string(),
            description: key.description,
            scopes: key.scopes.names(),
            namespaces: key.namespaces,
            expires_at: key.expires_at_ms.map(Timestamp),
            created_at: Timestamp(key.created_at_ms),
        }
    }
}

/// A key that was just made. The only place where a secret is ever shown.
#[derive(Clone, Serialize)]
pub struct CreatedApiKey {
    /// The whole key, `hf_<key id>_<secret>`.
    pub api_key: String,
    /// The rest.
    #[serde(flatten)]
    pub key: ApiKeyView,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamespaceView {
    /// Its incarnation: 16 lower-case hex digits, never reused.
    pub id: String,
    /// Unique in the account.
    pub name: String,
    /// As given.
    pub description: String,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl From<Namespace> for NamespaceView {
    fn from(namespace: Namespace) -> Self {
        Self {
            id: namespace.incarnation.to_string(),
            name: namespace.name,
            description: namespace.description,
            created_at: Timestamp(namespace.created_at_ms),
            updated_at: Timestamp(namespace.updated_at_ms),
        }
    }
}

/// A lock as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockInfo {
    /// The namespace's name.
    pub namespace: String,
    /// The flat name; absent unless the path has exactly one segment.
    pub name: Option<String>,
    /// Segments from the root.
    pub path: Vec<String>,
    /// A hold in transition counts.
    #[serde(serialize_with = "state_as_name")]
    pub state: LockState,
    /// First grant among the present holds.
    pub locked_at: Option<Timestamp>,
    /// The writer, if one holds it.
    pub write_lock_holder: Option<Holder>,
    /// Readers in order of arrival.
    pub read_lock_holders: Vec<Holder>,
    /// How many hold it, shown or not.
    pub holders_total: u64,
    /// Requests that wait with a claim on exactly this path.
    pub waiting: u64,
    /// Revision of its last change.
    pub revision: u64,
}

/// One hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The owner's process id; of a session: the session's.
    pub process_id: String,
    /// Set when a session holds it.
    pub session_id: Option<String>,
    /// Tells apart threads that share a session.
    pub holder: Option<String>,
    /// How.
    #[serde(serialize_with = "mode_as_name")]
    pub mode: Mode,
    /// The revision of its grant.
    pub fencing_token: u64,
    /// Wall clock at the grant.
    pub locked_at: Timestamp,
    /// Computed from `remaining_ms`; absent for holds that live as long as a session.
    pub expires_at: Option<Timestamp>,
    /// What is left of the present phase: the figure to rely on.
    pub remaining_ms: Option<u64>,
    /// Held or in transition.
    #[serde(serialize_with = "phase_as_name")]
    pub phase: Phase,
    /// As given.
    pub metadata: Metadata,
    /// The instant that a dlocks client asked for (Unix nanoseconds), so that it reads back what it wrote.
    #[serde(skip)]
    pub asked_expires_at_ns: Option<i64>,
}

/// Somebody in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockerInfo {
    /// What it holds or claims.
    pub path: Vec<String>,
    /// Whether it waits itself.
    pub waiting: bool,
    /// Who it is.
    #[serde(flatten)]
    pub holder: Holder,
}

/// Why a lock was not granted: an answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReasonInfo {
    /// Why; shown by [`Reason::name`].
    #[serde(serialize_with = "reason_as_name")]
    pub code: Reason,
    /// By whom, at most 16.
    pub blockers: Vec<BlockerInfo>,
    /// The place in the queue, from 0.
    pub queue_position: Option<u64>,
}

/// What an acquire answers. JSON leaves out `fencing_token` of a refusal and `reason` of a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AcquireAnswer {
    /// Whether it was granted.
    pub success: bool,
    /// The token, when granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// Why not, when not granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReasonInfo>,
    /// The lock as it now is.
    pub lock: LockInfo,
}

/// What a release answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReleaseAnswer {
    /// Whether a hold ended.
    pub released: bool,
    /// The lock as it now is.
    pub lock: LockInfo,
}

/// What a check answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckAnswer {
    /// True exactly while the hold of that token is held.
    pub current: bool,
    /// The lock as it is.
    pub lock: LockInfo,
}

/// The public name of a mode.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "READ",
        Mode::Write => "WRITE",
    }
}

/// The mode of a public name.
pub fn parse_mode(name: &str) -> Option<Mode> {
    match name {
        "READ" => Some(Mode::Read),
        "WRITE" => Some(Mode::Write),
        _ => None,
    }
}

/// The public name of a lock's state.
pub fn state_name(state: LockState) -> &'static str {
    match state {
        LockState::Unlocked => "UNLOCKED",
        LockState::ReadLocked => "READ_LOCKED",
        LockState::WriteLocked => "WRITE_LOCKED",
    }
}

/// The public name of a hold's phase.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Held => "HELD",
        Phase::Transition => "TRANSITION",
    }
}

/// The public name of an account's status.
pub fn status_name(status: AccountStatus) -> &'static str {
    match status {
        AccountStatus::Active => "ACTIVE",
        AccountStatus::Suspended => "SUSPENDED",
    }
}

/// The status of a public name.
pub fn parse_status(name: &str) -> Option<AccountStatus> {
    match name {
        "ACTIVE" => Some(AccountStatus::Active),
        "SUSPENDED" => Some(AccountStatus::Suspended),
        _ => None,
    }
}

fn mode_as_name<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(mode_name(*mode))
}

fn state_as_name<S: Serializer>(state: &LockState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state_name(*state))
}

fn phase_as_name<S: Serializer>(phase: &Phase, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(phase_name(*phase))
}

fn status_as_name<S: Serializer>(status: &AccountStatus, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(status_name(*status))
}

fn reason_as_name<S: Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(reason.name())
}

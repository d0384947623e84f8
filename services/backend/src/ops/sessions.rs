//! Opens, reads, keeps alive and ends sessions.

use holdfast_api::{ApiError, ApiResult, CreateSession, Page, PageRequest, SessionInfo, page_token, validate};
use holdfast_cluster::Application;
use holdfast_routing::RoutedReply;
use holdfast_types::{
    Command, CommandError, Durability, LocksCommand, NamespaceRef, OpenSession, OpenTableSession, Query, Reply,
    Response, Revision, Scopes, SessionView, TABLE_SESSION_TTL_MS, TableCommand,
};
use sha2::{Digest, Sha256};

use crate::admission::Share;
use crate::auth::TenantContext;
use crate::shard_call::{AsReply, ShardRequest, check_repeat, expect_answer, random_bytes, unexpected};
use crate::{AuthContext, CallContext, Service};

/// 32 letters, so that five bits make one letter.
const ID_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Letters of a session id after its prefix: 130 bits.
const ID_LENGTH: usize = 26;
/// How often another id is drawn when one is in use. A collision is next to impossible.
const MAX_ID_ATTEMPTS: usize = 3;

/// The reply of a locks shard, and the shard that sent it.
pub(crate) struct SessionLocation {
    /// The shard that owns the namespace.
    pub(crate) key: u32,
    /// The incarnation that the call concerned.
    pub(crate) namespace: NamespaceRef,
    routed: RoutedReply,
}

impl AsReply for SessionLocation {
    fn reply(&self) -> &Reply {
        &self.routed.reply
    }
}

/// A session that was opened or resumed.
pub(crate) struct OpenedSession {
    pub(crate) key: u32,
    pub(crate) namespace: NamespaceRef,
    pub(crate) session: SessionView,
    pub(crate) resumed: bool,
    /// The epoch of the namespace's lock table, if the table is in its leader's memory.
    pub(crate) table_epoch: Option<Revision>,
}

/// How a session is opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenTerms<'a> {
    /// The session to resume.
    pub(crate) resume: Option<&'a str>,
    /// Whether its client keeps a table of its holds.
    pub(crate) keeps_table: bool,
    /// The transition of all its holds, in milliseconds, for such a client.
    pub(crate) transition_ms: u64,
    /// Whether its time to live is adjusted to the nearest value that such a table allows.
    pub(crate) fits_ttl: bool,
}

impl Service {
    /// Opens a session without a connection: its client keeps it alive by calls.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, `QUOTA_EXCEEDED`, besides those of every call.
    pub async fn create_session(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: CreateSession,
    ) -> ApiResult<SessionInfo> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        validate::session_ttl_ms(request.ttl_ms, tenant.limits())?;
        let opened = self.open_session(tenant, context, &request, OpenTerms::default()).await?;
        check_repeat(opened.session.process_id == request.process_id)?;
        Ok(opened.session.into())
    }

    /// Opens a session, or resumes the session with this id. Does not check its time to live against the account's
    /// limits.
    pub(crate) async fn open_session(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        request: &CreateSession,
        terms: OpenTerms<'_>,
    ) -> ApiResult<OpenedSession> {
        let resume = terms.resume;
        tenant.check_namespace("namespace", &request.namespace)?;
        validate::process_id(&request.process_id)?;
        validate::metadata(&request.metadata, tenant.limits())?;
        match resume {
            Some(session_id) => validate::session_id(session_id)?,
            // A resume continues an existing session, so like an extension it does not count against the rate.
            None => self.inner.rates.admit(tenant.account, context.body_bytes())?,
        }
        let maker = tenant.account.id.to_string();
        let opening = self.request_id(&maker, "create session", context)?;
        for _ in 0..MAX_ID_ATTEMPTS {
            let session_id = match (resume, &context.idempotency_key) {
                (Some(session_id), _) => session_id.to_owned(),
                // The same id for every repeat of the call.
                (None, Some(_)) => session_id(&Sha256::digest(opening.0)),
                (None, None) => session_id(&random_bytes::<ID_LENGTH>()?),
            };
            let open = |namespace| OpenSession {
                namespace,
                session_id: session_id.clone(),
                resume: resume.is_some(),
                request_id: opening,
                process_id: request.process_id.clone(),
                ttl_ms: request.ttl_ms,
                metadata: request.metadata.clone(),
            };
            let SessionLocation { key, namespace, routed } =
                self.call_to_open(tenant, context, open, &request.namespace, terms).await?;
            match routed.reply.outcome {
                // The session of that idempotency key, which a connection resumed meanwhile.
                Err(CommandError::IdTaken) if context.idempotency_key.is_some() => {
                    let session = self.read_session(tenant, context, &request.namespace, &session_id).await?;
                    return Ok(OpenedSession { key, namespace, session, resumed: false, table_epoch: None });
                }
                Err(CommandError::IdTaken) => {}
                outcome => {
                    let (session, resumed, table_epoch) = match outcome? {
                        Response::SessionOpened { session, resumed } => (session, resumed, None),
                        Response::TableSessionOpened { session, resumed, table_epoch } => {
                            (session, resumed, Some(table_epoch))
                        }
                        other => return Err(unexpected(&other)),
                    };
                    return Ok(OpenedSession { key, namespace, session, resumed, table_epoch });
                }
            }
        }
        Err(ApiError::from(CommandError::IdTaken))
    }

    /// Records a keep-alive and returns the remaining time to live in milliseconds.
    ///
    /// # Errors
    /// `SESSION_NOT_FOUND`, also when it has ended, besides those of every call. The rate limit never applies.
    pub async fn keep_session_alive(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        session_id: &str,
    ) -> ApiResult<u64> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        tenant.check_namespace("namespace", namespace)?;
        validate::session_id(session_id)?;
        let make = |namespace| {
            ShardRequest::from(Query::KeepAlive { namespace, session_id: session_id.to_owned(), epoch: None })
        };
        let reply = self.call_locks(tenant, namespace, context, make).await?;
        expect_answer!(reply.outcome?, Response::Session(session) => session.remaining_ms)
    }

    /// Returns one session. Reading it does not keep it alive.
    ///
    /// # Errors
    /// `SESSION_NOT_FOUND`, besides those of every call.
    pub async fn get_session(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        session_id: &str,
    ) -> ApiResult<SessionInfo> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        tenant.check_namespace("namespace", namespace)?;
        validate::session_id(session_id)?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        self.read_session(tenant, context, namespace, session_id).await.map(Into::into)
    }

    /// Ends a session, and at once all its holds and waiting requests.
    ///
    /// # Errors
    /// `SESSION_NOT_FOUND`, besides those of every call. The rate limit never applies, since this releases.
    pub async fn delete_session(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        session_id: &str,
    ) -> ApiResult<()> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        tenant.check_namespace("namespace", namespace)?;
        validate::session_id(session_id)?;
        let make = |namespace| {
            let session_id = session_id.to_owned();
            ShardRequest::from(Command::Locks(LocksCommand::CloseSession { namespace, session_id, message: None }))
        };
        let routed = self.call_located(tenant, namespace, context, make).await?.routed;
        match routed.reply.outcome {
            // An earlier attempt of this call may have ended it.
            Err(CommandError::SessionNotFound(_)) if routed.maybe_done_before => Ok(()),
            outcome => expect_answer!(outcome?, Response::Done => ()),
        }
    }

    /// Lists sessions of a namespace, in order of id.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn list_sessions(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        page: PageRequest,
    ) -> ApiResult<Page<SessionInfo>> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        tenant.check_namespace("namespace", namespace)?;
        let limit = validate::page_size(page.page_size)?;
        let list = format!("sessions of {} {namespace:?}", tenant.account.id);
        let after: Option<String> = page_token::decode(&list, page.page_token.as_deref())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| ShardRequest::from(Query::Sessions { namespace, after: after.clone(), limit });
        let reply = self.call_locks(tenant, namespace, context, make).await?;
        let (sessions, more) =
            expect_answer!(reply.outcome?, Response::Sessions { sessions, more } => (sessions, more))?;
        let last = sessions.last().map(|session| &session.session_id);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, last));
        Ok(Page { items: sessions.into_iter().map(Into::into).collect(), next_page_token })
    }

    /// Resumes a session without a connection, whose client keeps a table if its namespace needs one. Its time to live
    /// starts again, and is not checked against the account's limits; where the locks are in the memory of a leader, it
    /// is adjusted to the nearest allowed value.
    ///
    /// # Errors
    /// `SESSION_NOT_FOUND`, besides those of every call. The rate limit never applies.
    pub async fn resume_session(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: &CreateSession,
        session_id: &str,
    ) -> ApiResult<()> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let terms = OpenTerms { resume: Some(session_id), keeps_table: true, transition_ms: 0, fits_ttl: true };
        self.open_session(tenant, context, request, terms).await.map(drop)
    }

    /// Checks whether the caller may open a session there, so that a certain rejection precedes the connection.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn check_may_connect(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
    ) -> ApiResult<()> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        tenant.check_namespace("namespace", namespace)?;
        let found = self.inner.directory.namespace(tenant.account, namespace, context.deadline).await?;
        found.map(drop).ok_or_else(|| ApiError::namespace_not_found(namespace))
    }

    pub(super) async fn read_session(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &str,
        session_id: &str,
    ) -> ApiResult<SessionView> {
        let make = |namespace| ShardRequest::from(Query::Session { namespace, session_id: session_id.to_owned() });
        let reply = self.call_locks(tenant, namespace, context, make).await?;
        expect_answer!(reply.outcome?, Response::Session(session) => session)
    }

    /// Calls the locks shard of a namespace with the opening of a session that fits its durability.
    async fn call_to_open(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        request: impl Fn(NamespaceRef) -> OpenSession,
        name: &str,
        terms: OpenTerms<'_>,
    ) -> ApiResult<SessionLocation> {
        let share = Share::from(tenant.account);
        let call = |key, namespace: NamespaceRef| {
            let open = request(namespace.clone());
            async move {
                let known = self.inner.directory.namespace(tenant.account, name, context.deadline).await?;
                let durability = known.ok_or_else(|| ApiError::namespace_not_found(name))?.durability;
                let ask = ShardRequest::from(Command::Locks(opening(open, durability, terms)?));
                let routed = self.call_with_permit(share, Application::Locks, key, ask, context).await?;
                Ok(SessionLocation { key, namespace, routed })
            }
        };
        self.with_incarnation(tenant.account, name, context.deadline, call).await
    }

    /// Calls the locks shard of a namespace, and returns the shard with the reply.
    async fn call_located(
        &self,
        tenant: TenantContext<'_>,
        name: &str,
        context: &CallContext,
        make: impl Fn(NamespaceRef) -> ShardRequest,
    ) -> ApiResult<SessionLocation> {
        let share = Share::from(tenant.account);
        let call = |key, namespace: NamespaceRef| {
            let ask = make(namespace.clone());
            async move {
                let routed = self.call_with_permit(share, Application::Locks, key, ask, context).await?;
                Ok(SessionLocation { key, namespace, routed })
            }
        };
        self.with_incarnation(tenant.account, name, context.deadline, call).await
    }
}

/// Returns the command that opens a session in a namespace of that durability. Where the lock table is in the leader's
/// memory, the shard refuses a client that keeps none.
fn opening(mut open: OpenSession, durability: Durability, terms: OpenTerms<'_>) -> ApiResult<LocksCommand> {
    let OpenTerms { keeps_table, transition_ms, fits_ttl, .. } = terms;
    match durability {
        Durability::Session if keeps_table => {
            if fits_ttl {
                let (shortest, longest) = TABLE_SESSION_TTL_MS;
                open.ttl_ms = open.ttl_ms.clamp(shortest, longest);
            }
            Ok(LocksCommand::Table(TableCommand::OpenSession(OpenTableSession { open, transition_ms })))
        }
        Durability::Full if transition_ms > 0 => Err(ApiError::invalid(
            "transition_ms",
            "transition_ms: belongs to each request, since the durability of the namespace is FULL",
        )),
        Durability::Full | Durability::Session => Ok(LocksCommand::OpenSession(open)),
    }
}

/// Returns the session id of these random bytes.
fn session_id(bytes: &[u8]) -> String {
    let letters = bytes.iter().take(ID_LENGTH).map(|byte| char::from(ID_ALPHABET[usize::from(byte % 32)]));
    validate::SESSION_PREFIX.chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_valid_have_130_bits_and_differ() {
        let draw = || session_id(&random_bytes::<ID_LENGTH>().unwrap());
        let ids: HashSet<String> = (0..1_000).map(|_| draw()).collect();
        assert_eq!(ids.len(), 1_000);
        for id in &ids {
            validate::session_id(id).unwrap();
            let rest = id.strip_prefix("se_").unwrap();
            assert_eq!(rest.len(), 26);
            assert!(rest.bytes().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit()));
        }
        let used: HashSet<char> = ids.iter().flat_map(|id| id["se_".len()..].chars()).collect();
        assert_eq!(used.len(), 32, "every letter comes up");
    }

    #[test]
    fn a_session_of_a_table_in_memory_has_a_time_to_live_that_fits_it() {
        let ttl_ms = |durability, asked_ms, fits_ttl| {
            let open = OpenSession {
                namespace: NamespaceRef {
                    account: holdfast_types::AccountId(7),
                    name: "soft".to_owned(),
                    incarnation: holdfast_types::Incarnation(1),
                },
                session_id: "se_1".to_owned(),
                resume: false,
                request_id: holdfast_types::RequestId([1; 16]),
                process_id: "p".to_owned(),
                ttl_ms: asked_ms,
                metadata: holdfast_types::Metadata::new(),
            };
            let terms = OpenTerms { keeps_table: true, fits_ttl, ..OpenTerms::default() };
            match opening(open, durability, terms).unwrap() {
                LocksCommand::Table(TableCommand::OpenSession(open)) => open.open.ttl_ms,
                LocksCommand::OpenSession(open) => open.ttl_ms,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([500, 5_000, 90_000].map(|ms| ttl_ms(Durability::Session, ms, true)), [2_000, 5_000, 60_000]);
        assert_eq!(ttl_ms(Durability::Session, 90_000, false), 90_000, "its client is told that it is too long");
        assert_eq!(ttl_ms(Durability::Full, 90_000, true), 90_000);
    }

    #[test]
    fn the_same_bytes_make_the_same_id() {
        let digest = Sha256::digest(b"opening");
        assert_eq!(session_id(&digest), session_id(&digest));
        assert_eq!(session_id(&digest).len(), "se_".len() + 26);
    }
}

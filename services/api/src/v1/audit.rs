//! Converts messages about the audit log.

use holdfast_proto::v1;

use super::convert;
use crate::{AuditEntry, ListAudit};

/// Converts a list.
pub fn list(message: v1::ListAuditRequest) -> ListAudit {
    let v1::ListAuditRequest { account_id, page_size, page_token } = message;
    let account = (!account_id.is_empty()).then_some(account_id);
    ListAudit { account, page: convert::page_request(page_size, page_token) }
}

/// Converts an entry.
pub fn entry(entry: AuditEntry) -> v1::AuditEntry {
    v1::AuditEntry {
        at: Some(convert::instant(entry.at)),
        account_id: entry.account_id,
        action: entry.action.name().to_owned(),
        actor: entry.actor.to_owned(),
        actor_key_id: entry.actor_key_id,
        request_id: entry.request_id,
        key_id: entry.key_id,
        namespace: entry.namespace,
        path: entry.path.unwrap_or_default(),
        detail: entry.detail,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::AuditAction;

    use super::*;
    use crate::Timestamp;

    #[test]
    fn a_message_says_what_the_entry_says() {
        let shown = entry(AuditEntry {
            at: Timestamp(1_500),
            account_id: "00000000000000aa".into(),
            action: AuditAction::LockDeleted,
            actor: "API_KEY",
            actor_key_id: Some("key".into()),
            request_id: "call".into(),
            key_id: None,
            namespace: Some("ns".into()),
            path: Some(vec!["a".into(), "b".into()]),
            detail: "detail".into(),
        });
        let at = shown.at.expect("it is there");
        assert_eq!((at.seconds, at.nanos), (1, 500_000_000));
        assert_eq!((shown.account_id.as_str(), shown.action.as_str()), ("00000000000000aa", "LOCK_DELETED"));
        assert_eq!((shown.actor.as_str(), shown.actor_key_id.as_deref()), ("API_KEY", Some("key")));
        assert_eq!((shown.request_id.as_str(), shown.key_id.as_deref()), ("call", None));
        assert_eq!((shown.namespace.as_deref(), shown.path.join("/")), (Some("ns"), "a/b".to_owned()));
        assert_eq!(shown.detail, "detail");
    }

    #[test]
    fn what_is_empty_in_a_list_is_absent() {
        let request = list(v1::ListAuditRequest::default());
        assert_eq!((request.account, request.page.page_size, request.page.page_token), (None, None, None));
        let own = list(v1::ListAuditRequest { account_id: "00000000000000aa".into(), ..Default::default() });
        assert_eq!(own.account.as_deref(), Some("00000000000000aa"));
    }
}

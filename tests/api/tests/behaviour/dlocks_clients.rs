//! dlocks clients as they are: their calls in their order, and how they say whose they are.

use std::time::Duration;

use holdfast_proto::dlocks as d;
use holdfast_proto::dlocks::locks_service_api_client::LocksServiceApiClient;
use holdfast_testkit::Standalone;
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::support::frontends::grpc::{channel, with_key};
use crate::support::frontends::{Failure, instant_ns, now_ms};
use crate::support::{account_metadata_server, create_tenant, operator_client, server};

type Api = LocksServiceApiClient<Channel>;

async fn connect(server: &Standalone) -> Api {
    LocksServiceApiClient::new(channel(&operator_client(server)).await)
}

/// A request with the metadata `account-id`, as often as it is given.
fn with_account_ids<T>(message: T, accounts: &[&str]) -> Request<T> {
    let mut request = Request::new(message);
    for account in accounts {
        request.metadata_mut().append("account-id", account.parse().unwrap());
    }
    request
}

fn acquire_message(process_id: &str, write_lock: bool, expires_at: i64) -> d::AcquireLockRequest {
    let (namespace_name, lock_name) = ("my-namespace".into(), "my-lock-1".into());
    d::AcquireLockRequest { namespace_name, lock_name, process_id: process_id.into(), write_lock, expires_at }
}

#[tokio::test]
async fn the_flow_of_an_existing_client_runs_unchanged() {
    let account = create_tenant(account_metadata_server()).await.account;
    let mut api = connect(account_metadata_server()).await;
    let name = || d::GetNamespaceRequest { namespace_name: "my-namespace".into() };
    let status = api.get_namespace(with_account_ids(name(), &[&account])).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "namespace not found"));

    let create = d::CreateNamespaceRequest { name: "my-namespace".into(), description: "mine".into() };
    let asked_at = now_ms() * 1_000_000;
    let made =
        api.create_namespace(with_account_ids(create, &[&account])).await.unwrap().into_inner().namespace.unwrap();
    assert_eq!((made.name.as_str(), made.description.as_str()), ("my-namespace", "mine"));
    assert!(made.created_at >= asked_at && made.created_at == made.updated_at, "times are nanoseconds");
    let listed =
        api.list_namespaces(with_account_ids(d::ListNamespacesRequest {}, &[&account])).await.unwrap().into_inner();
    assert_eq!(listed.namespaces, [made]);

    let until = instant_ns(Duration::from_secs(60));
    let taken = api
        .acquire_lock(with_account_ids(acquire_message("process-id-1", true, until), &[&account]))
        .await
        .unwrap()
        .into_inner();
    assert!(taken.success);
    let lock = taken.lock.unwrap();
    assert_eq!((lock.name.as_str(), lock.state()), ("my-lock-1", d::LockState::WriteLocked));
    let writer = lock.write_lock_holder.unwrap();
    assert_eq!((writer.process_id.as_str(), writer.expires_at), ("process-id-1", until), "to the nanosecond");
    assert_eq!(writer.locked_at, lock.locked_at);

    let refused = api
        .acquire_lock(with_account_ids(acquire_message("process-id-2", false, until), &[&account]))
        .await
        .unwrap()
        .into_inner();
    assert!(!refused.success);
    assert_eq!(refused.lock.unwrap().write_lock_holder.unwrap().process_id, "process-id-1");

    let lock = || ("my-namespace".to_owned(), "my-lock-1".to_owned());
    let (namespace_name, lock_name) = lock();
    let release = d::ReleaseLockRequest { namespace_name, lock_name, process_id: "process-id-1".into() };
    let released = api.release_lock(with_account_ids(release, &[&account])).await.unwrap().into_inner().lock.unwrap();
    assert_eq!(released, d::Lock { name: "my-lock-1".into(), ..Default::default() });
    let (namespace_name, lock_name) = lock();
    api.delete_lock(with_account_ids(d::DeleteLockRequest { namespace_name, lock_name }, &[&account])).await.unwrap();
    let delete = d::DeleteNamespaceRequest { namespace_name: "my-namespace".into() };
    api.delete_namespace(with_account_ids(delete, &[&account])).await.unwrap();
}

#[tokio::test]
async fn an_extension_reads_back_the_instant_that_it_wrote() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("my-namespace").await;
    let mut api = connect(server()).await;
    for seconds in [60, 120, 30] {
        let until = instant_ns(Duration::from_secs(seconds)) / 1_000 * 1_000 + 789;
        let taken =
            api.acquire_lock(with_key(acquire_message("p", true, until), &tenant.rest.key)).await.unwrap().into_inner();
        assert_eq!(taken.lock.unwrap().write_lock_holder.unwrap().expires_at, until);
    }
}

fn expect_failure(outcome: Result<impl Sized, Status>) -> (Code, String) {
    let Err(status) = outcome else { panic!("it was let in") };
    (status.code(), Failure::from_status(status).detail)
}

#[tokio::test]
async fn a_missing_wrong_or_repeated_account_is_refused_by_name() {
    let tenant = create_tenant(account_metadata_server()).await;
    tenant.create_namespace("my-namespace").await;
    let mut api = connect(account_metadata_server()).await;
    let account = tenant.account.as_str();
    let message = || acquire_message("p", true, instant_ns(Duration::from_secs(60)));
    let (code, detail) = expect_failure(api.acquire_lock(Request::new(message())).await);
    assert_eq!(code, Code::Unauthenticated);
    assert!(detail.starts_with("account-id: is missing"), "{detail}");
    let decimal = u64::from_str_radix(account, 16).unwrap().to_string();
    for wrong in ["", "xyz", &account[1..], &format!("0{account}"), &format!("0x{account}"), &decimal] {
        if wrong.len() == 16 {
            continue;
        }
        let (code, detail) = expect_failure(api.acquire_lock(with_account_ids(message(), &[wrong])).await);
        assert_eq!(code, Code::InvalidArgument);
        assert!(detail.starts_with("account-id: must be 16 hex digits"), "{wrong}: {detail}");
    }
    for twice in [[account, account], [account, "0000000000000001"]] {
        let (code, detail) = expect_failure(api.acquire_lock(with_account_ids(message(), &twice)).await);
        assert_eq!((code, detail.as_str()), (Code::InvalidArgument, "account-id: given more than once"));
    }
    let status = api.acquire_lock(with_account_ids(message(), &["0000000000000000"])).await.unwrap_err();
    assert_eq!((status.code(), Failure::from_status(status).code.as_str()), (Code::NotFound, "ACCOUNT_NOT_FOUND"));
    let listed = tenant.rest.call("GET /v1/namespaces/my-namespace/locks").await.ok();
    assert_eq!(listed["locks"], json!([]));
    assert!(api.acquire_lock(with_account_ids(message(), &[account])).await.unwrap().into_inner().success);
}

#[tokio::test]
async fn an_account_cannot_be_named_where_callers_are_not_trusted() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("my-namespace").await;
    let mut api = connect(server()).await;
    let message = || acquire_message("p", true, instant_ns(Duration::from_secs(60)));
    let (code, detail) = expect_failure(api.acquire_lock(with_account_ids(message(), &[&tenant.account])).await);
    assert_eq!(code, Code::Unauthenticated);
    assert!(detail.contains("API key"), "{detail}");
    assert_eq!(expect_failure(api.acquire_lock(Request::new(message())).await).0, Code::Unauthenticated);
    // With a key the name counts for nothing, whatever it is.
    let mut request = with_key(message(), &tenant.rest.key);
    request.metadata_mut().insert("account-id", "0000000000000000".parse().unwrap());
    assert!(api.acquire_lock(request).await.unwrap().into_inner().success);
}

#[tokio::test]
async fn a_trusted_name_opens_neither_the_public_api_nor_a_suspended_account() {
    let tenant = create_tenant(account_metadata_server()).await;
    tenant.create_namespace("my-namespace").await;
    let mut locks = holdfast_proto::v1::locks_service_client::LocksServiceClient::new(channel(&tenant.rest).await);
    let get = holdfast_proto::v1::GetLockRequest {
        namespace: "my-namespace".into(),
        name: Some("l".into()),
        ..Default::default()
    };
    assert_eq!(
        locks.get_lock(with_account_ids(get, &[&tenant.account])).await.unwrap_err().code(),
        Code::Unauthenticated
    );
    tenant.update(account_metadata_server(), json!({"status": "SUSPENDED"})).await;
    let message = acquire_message("p", true, instant_ns(Duration::from_secs(60)));
    let (code, detail) = expect_failure(
        connect(account_metadata_server()).await.acquire_lock(with_account_ids(message, &[&tenant.account])).await,
    );
    assert_eq!((code, detail.as_str()), (Code::PermissionDenied, "the account is suspended"));
}

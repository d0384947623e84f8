//! `AccountsService`.

use holdfast_api::v1::{audit, cluster, convert, usage};
use holdfast_api::{CreateAccount, CreateApiKey, CreateToken, UpdateAccount};
use holdfast_proto::v1;
use tonic::{Request, Response, Status};

use super::{AuthenticatedCall, GrpcServices, status};

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::accounts_service_server::AccountsService for GrpcServices {
    async fn create_account(&self, request: Request<v1::CreateAccountRequest>) -> RpcResult<v1::Account> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let v1::CreateAccountRequest { email, full_name, max_number_of_namespaces } = message;
        let request = CreateAccount { email, full_name, max_number_of_namespaces };
        let account = self.service.create_account(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(convert::account(account)))
    }

    async fn list_accounts(&self, request: Request<v1::ListAccountsRequest>) -> RpcResult<v1::ListAccountsResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let page = convert::page_request(message.page_size, message.page_token);
        let page = self.service.list_accounts(&caller, &context, page).await.map_err(status)?;
        Ok(Response::new(v1::ListAccountsResponse {
            accounts: page.items.into_iter().map(convert::account).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }

    async fn get_account(&self, request: Request<v1::GetAccountRequest>) -> RpcResult<v1::Account> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let account = self.service.get_account(&caller, &context, &message.id).await.map_err(status)?;
        Ok(Response::new(convert::account(account)))
    }

    async fn update_account(&self, request: Request<v1::UpdateAccountRequest>) -> RpcResult<v1::Account> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let update = UpdateAccount {
            status: convert::account_status(message.status).map_err(status)?,
            full_name: message.full_name,
            max_number_of_namespaces: message.max_number_of_namespaces,
            limits: message.limits.map(convert::limits_patch),
        };
        let account = self.service.update_account(&caller, &context, &message.id, update).await.map_err(status)?;
        Ok(Response::new(convert::account(account)))
    }

    async fn delete_account(&self, request: Request<v1::DeleteAccountRequest>) -> RpcResult<v1::DeleteAccountResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        self.service.delete_account(&caller, &context, &message.id).await.map_err(status)?;
        Ok(Response::new(v1::DeleteAccountResponse {}))
    }

    async fn create_api_key(&self, request: Request<v1::CreateApiKeyRequest>) -> RpcResult<v1::ApiKey> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let account = non_empty(&message.account_id);
        let request = CreateApiKey {
            description: Some(message.description),
            scopes: non_empty_list(message.scopes),
            namespaces: non_empty_list(message.namespaces),
            expires_at: convert::parse_instant("expires_at", message.expires_at).map_err(status)?,
        };
        let created = self.service.create_api_key(&caller, &context, account, request).await.map_err(status)?;
        Ok(Response::new(convert::api_key(created.key, Some(created.api_key))))
    }

    async fn list_api_keys(&self, request: Request<v1::ListApiKeysRequest>) -> RpcResult<v1::ListApiKeysResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let account = non_empty(&message.account_id);
        let keys = self.service.list_api_keys(&caller, &context, account).await.map_err(status)?;
        let api_keys = keys.into_iter().map(|key| convert::api_key(key, None)).collect();
        Ok(Response::new(v1::ListApiKeysResponse { api_keys }))
    }

    async fn delete_api_key(&self, request: Request<v1::DeleteApiKeyRequest>) -> RpcResult<v1::DeleteApiKeyResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let account = non_empty(&message.account_id);
        self.service.delete_api_key(&caller, &context, account, &message.key_id).await.map_err(status)?;
        Ok(Response::new(v1::DeleteApiKeyResponse {}))
    }

    async fn create_token(&self, request: Request<v1::CreateTokenRequest>) -> RpcResult<v1::Token> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let v1::CreateTokenRequest { scopes, namespaces, ttl_ms } = message;
        let request = CreateToken { scopes: non_empty_list(scopes), namespaces: non_empty_list(namespaces), ttl_ms };
        let created = self.service.create_token(&caller, &context, request).map_err(status)?;
        Ok(Response::new(v1::Token { token: created.token, expires_at: Some(convert::instant(created.expires_at)) }))
    }

    async fn get_usage(&self, request: Request<v1::GetUsageRequest>) -> RpcResult<v1::Usage> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let account = non_empty(&message.account_id);
        let used = self.service.usage(&caller, &context, account).await.map_err(status)?;
        Ok(Response::new(usage::usage(used)))
    }

    async fn list_audit(&self, request: Request<v1::ListAuditRequest>) -> RpcResult<v1::ListAuditResponse> {
        let AuthenticatedCall { caller, context, message } = AuthenticatedCall::check(&self.service, request).await?;
        let page = self.service.list_audit(&caller, &context, audit::list(message)).await.map_err(status)?;
        Ok(Response::new(v1::ListAuditResponse {
            entries: page.items.into_iter().map(audit::entry).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }

    async fn get_cluster(&self, request: Request<v1::GetClusterRequest>) -> RpcResult<v1::Cluster> {
        let AuthenticatedCall { caller, context, .. } = AuthenticatedCall::check(&self.service, request).await?;
        let shown = self.service.cluster(&caller, &context).await.map_err(status)?;
        Ok(Response::new(cluster::info(shown)))
    }
}

/// Protocol buffers cannot distinguish the empty text from an absent one.
fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn non_empty_list(items: Vec<String>) -> Option<Vec<String>> {
    (!items.is_empty()).then_some(items)
}

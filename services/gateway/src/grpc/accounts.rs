//! `AccountsService`.

use holdfast_core::AccountStatus;
use holdfast_proto::v1;
use holdfast_proto::v1::account::Status as AccountStatusMessage;
use tonic::{Request, Response, Status};

use super::{Call, GrpcDoor, show, status};
use crate::error::{ApiError, ApiResult};
use crate::service::{CreateAccount, CreateApiKey, CreateToken, UpdateAccount};

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::accounts_service_server::AccountsService for GrpcDoor {
    async fn create_account(&self, request: Request<v1::CreateAccountRequest>) -> Answer<v1::Account> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let v1::CreateAccountRequest { email, full_name, max_number_of_namespaces } = message;
        let request = CreateAccount { email, full_name, max_number_of_namespaces };
        let account = self.service.create_account(&caller, &context, request).await.map_err(status)?;
        Ok(Response::new(show::account(account)))
    }

    async fn list_accounts(&self, request: Request<v1::ListAccountsRequest>) -> Answer<v1::ListAccountsResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let page = show::page(message.page_size, message.page_token);
        let page = self.service.list_accounts(&caller, &context, page).await.map_err(status)?;
        Ok(Response::new(v1::ListAccountsResponse {
            accounts: page.items.into_iter().map(show::account).collect(),
            next_page_token: page.next_page_token.unwrap_or_default(),
        }))
    }

    async fn get_account(&self, request: Request<v1::GetAccountRequest>) -> Answer<v1::Account> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let account = self.service.get_account(&caller, &context, &message.id).await.map_err(status)?;
        Ok(Response::new(show::account(account)))
    }

    async fn update_account(&self, request: Request<v1::UpdateAccountRequest>) -> Answer<v1::Account> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let update = UpdateAccount {
            status: account_status(message.status).map_err(status)?,
            full_name: message.full_name,
            max_number_of_namespaces: message.max_number_of_namespaces,
            limits: message.limits.map(show::limits_patch),
        };
        let account = self.service.update_account(&caller, &context, &message.id, update).await.map_err(status)?;
        Ok(Response::new(show::account(account)))
    }

    async fn delete_account(&self, request: Request<v1::DeleteAccountRequest>) -> Answer<v1::DeleteAccountResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        self.service.delete_account(&caller, &context, &message.id).await.map_err(status)?;
        Ok(Response::new(v1::DeleteAccountResponse {}))
    }

    async fn create_api_key(&self, request: Request<v1::CreateApiKeyRequest>) -> Answer<v1::ApiKey> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let account = given(&message.account_id);
        let request = CreateApiKey {
            description: Some(message.description),
            scopes: listed(message.scopes),
            namespaces: listed(message.namespaces),
            expires_at: show::parse_instant("expires_at", message.expires_at).map_err(status)?,
        };
        let created = self.service.create_api_key(&caller, &context, account, request).await.map_err(status)?;
        Ok(Response::new(show::api_key(created.key, Some(created.api_key))))
    }

    async fn list_api_keys(&self, request: Request<v1::ListApiKeysRequest>) -> Answer<v1::ListApiKeysResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let account = given(&message.account_id);
        let keys = self.service.list_api_keys(&caller, &context, account).await.map_err(status)?;
        let api_keys = keys.into_iter().map(|key| show::api_key(key, None)).collect();
        Ok(Response::new(v1::ListApiKeysResponse { api_keys }))
    }

    async fn delete_api_key(&self, request: Request<v1::DeleteApiKeyRequest>) -> Answer<v1::DeleteApiKeyResponse> {
        let Call { caller, context, message } = Call::check(&self.service, request).await?;
        let account = given(&message.account_id);
        self.service.delete_api_key(&caller, &context, account, &message.key_id).await.map_err(status)?;
        Ok(Response::new(v1::DeleteApiKeyResponse {}))
    }

    async fn create_token(&self, request: Request<v1::CreateTokenRequest>) -> Answer<v1::Token> {
        let Call { caller, context: _, message } = Call::check(&self.service, request).await?;
        let v1::CreateTokenRequest { scopes, namespaces, ttl_ms } = message;
        let request = CreateToken { scopes: listed(scopes), namespaces: listed(namespaces), ttl_ms };
        let created = self.service.create_token(&caller, request).map_err(status)?;
        Ok(Response::new(v1::Token { token: created.token, expires_at: Some(show::instant(created.expires_at)) }))
    }
}

fn account_status(value: i32) -> ApiResult<Option<AccountStatus>> {
    match AccountStatusMessage::try_from(value) {
        Ok(AccountStatusMessage::Unspecified) => Ok(None),
        Ok(AccountStatusMessage::Active) => Ok(Some(AccountStatus::Active)),
        Ok(AccountStatusMessage::Suspended) => Ok(Some(AccountStatus::Suspended)),
        Err(_) => Err(ApiError::invalid("status", "status: must be ACTIVE or SUSPENDED")),
    }
}

/// Protocol buffers cannot tell the empty text from one that is absent.
fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn listed(items: Vec<String>) -> Option<Vec<String>> {
    (!items.is_empty()).then_some(items)
}

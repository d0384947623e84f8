//! The parts of the description that all calls share.

use utoipa::PartialSchema;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{Components, Info, License, OpenApi, RefOr, Required};

use super::problems::ProblemSchema;
use crate::head::TIMEOUT_HEADER;

const DESCRIPTION: &str = "Locks for programs that must not do the same thing at the same time. Durations are whole \
                     milliseconds, instants RFC 3339 in UTC. Errors are `application/problem+json` with a `code`. \
                     Requests are strict: what is unknown, repeated or of another type is refused by name. Answers \
                     from the locks or sessions of a namespace carry `Holdfast-Leader`, if it is known: the address \
                     (`host:port`) of the gateway that answers calls about that namespace fastest.";

/// Groups of calls, in display order.
const TAGS: [(&str, &str); 16] = [
    ("Locks", "Take, release and look at locks."),
    ("Sets", "Several locks at once, locks of any path, and the namespace as a whole."),
    ("Conditions", "Give a lock up until another owner of it says that something has changed."),
    ("Semaphores", "At most so many permits in use at a time."),
    ("Pools", "Holds of named members: any of them, or one by its name."),
    ("Latches", "Some report that jobs are done, others wait until all are."),
    ("Barriers", "So many meet and go on together, again and again."),
    ("Sessions", "What keeps holds alive while their owner lives."),
    ("Events", "What happens in a namespace, as it happens."),
    ("Namespaces", "Where locks live."),
    ("Usage", "What an account uses, and what was done in it."),
    ("API keys", "Credentials of an account."),
    ("Tokens", "Short-lived credentials."),
    ("Accounts", "Tenants; for the operator."),
    ("Cluster", "Nodes, groups and shards; for the operator."),
    ("Description", "This document, and whether the process is well."),
];

/// The variable segments of paths.
const PATH_PARAMETERS: [(&str, &str); 5] = [
    ("account", "The account's id: 16 hex digits."),
    ("key_id", "The public half of an API key."),
    ("namespace", "The namespace's name."),
    ("name", "The lock's name: one segment, percent-encoded where needed."),
    ("session", "The session's id."),
];

/// Adds to the document everything that is not beside the handlers.
pub(super) fn complete(mut document: OpenApi) -> OpenApi {
    let mut info = Info::new("Holdfast", env!("CARGO_PKG_VERSION"));
    info.description = Some(DESCRIPTION.to_owned());
    let mut license = License::new("Apache-2.0");
    license.identifier = Some("Apache-2.0".to_owned());
    info.license = Some(license);
    document.info = info;
    let tag = |(name, about): (&str, &str)| TagBuilder::new().name(name).description(Some(about)).build();
    document.tags = Some(TAGS.into_iter().map(tag).collect());
    for (path, item) in &mut document.paths.paths {
        for operation in operations_mut(item) {
            complete_operation(path, operation);
        }
    }
    let components = document.components.get_or_insert_with(Components::default);
    components.schemas.insert("Problem".to_owned(), ProblemSchema::schema());
    let bearer = |about: &str| {
        SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(about)).build())
    };
    components.add_security_scheme(
        "key",
        bearer("An API key of an account, or a token made with one. The scopes listed are needed."),
    );
    components.add_security_scheme("operator", bearer("The operator token."));
    document
}

fn operations_mut(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let methods = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
    methods.into_iter().flatten()
}

fn complete_operation(path: &str, operation: &mut Operation) {
    let names = path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<RefOr<Parameter>> = names.map(|name| RefOr::T(path_parameter(name))).collect();
    parameters.append(operation.parameters.get_or_insert_default());
    parameters.extend(headers(operation).into_iter().map(RefOr::T));
    operation.parameters = Some(parameters);
}

/// Returns the parameter of a name in the path.
fn path_parameter(name: &str) -> Parameter {
    let about = PATH_PARAMETERS.iter().find(|(known, _)| *known == name).map(|(_, about)| *about);
    let schema = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(128)).build();
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(about)
        .schema(Some(schema))
        .build()
}

/// Returns the headers of every call; creations also accept a key that makes their repeats harmless, unless they find by
/// themselves what an earlier call created.
fn headers(operation: &Operation) -> Vec<Parameter> {
    let header = |name: &str, about: &str, schema: ObjectBuilder| {
        ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(about))
            .schema(Some(schema.build()))
            .build()
    };
    let number = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(1));
    let text = || ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
    let id = text().max_length(Some(128)).pattern(Some("^[A-Za-z0-9._-]+$"));
    let mut headers = vec![
        header("Holdfast-Request-Id", "Names the call in logs and in the answer.", id),
        header(
            TIMEOUT_HEADER,
            "How long the caller waits for the answer, in milliseconds. Beyond 660,000 it waits that long.",
            number,
        ),
    ];
    let has = |status: &str| operation.responses.responses.contains_key(status);
    if has("201") && !has("200") {
        let key = text().max_length(Some(255)).pattern(Some("^[A-Za-z0-9._-]+$"));
        headers.push(header("Idempotency-Key", "A repeat with the same key answers as the first call did.", key));
    }
    headers
}

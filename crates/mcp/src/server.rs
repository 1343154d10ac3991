//! The protocol handler: identity, the tool list, and the dispatch of calls. A tool that fails, or panics, is a result with
//! `isError`; protocol errors are for unknown tools and methods only, because clients tend to hide them from the model.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use client::Client;
use futures_util::FutureExt;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest,
    CustomResult, DiscoverResult, ErrorCode, ErrorData, Implementation, InitializeRequestParams,
    InitializeResult, ListToolsResult, MetaObject, PaginatedRequestParams, ProtocolVersion,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::Value;
use tokio_util::task::TaskTracker;

use crate::args::Args;
use crate::progress::Progress;
use crate::text::{Failure, Outcome, line};
use crate::tools::{Call, Screens, Tool};

/// How long a client may keep the tool list: it only changes with the version of the server.
const LIST_TTL_MS: u64 = 60 * 60 * 1000;
/// Under which the newest protocol wants our identity in every result.
const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";
/// Methods whose parameters are ours to refuse: with unusable ones they arrive as custom requests.
const OWN_METHODS: &[&str] = &["initialize", "ping", "server/discover", "tools/call", "tools/list"];

/// The handler. One per client and key; calls run side by side.
#[derive(Debug)]
pub(crate) struct Server {
    tools: &'static [&'static Tool],
    client: Client,
    shared: Shared,
}

/// What all calls of a process share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared {
    /// Owns work that outlives a cancelled call.
    pub(crate) background: TaskTracker,
    /// What is known of desktops.
    pub(crate) screens: Arc<Screens>,
    /// Whether results have their structured form beside an image as well (`spec/mcp.md` §J.1).
    pub(crate) structured_images: bool,
}

impl Server {
    /// Does no I/O, and costs next to nothing.
    pub(crate) fn new(client: Client, tools: &'static [&'static Tool], shared: Shared) -> Self {
        Self { tools, client, shared }
    }

    fn identity() -> Implementation {
        Implementation::new("superserve", env!("CARGO_PKG_VERSION"))
            .with_title("Superserve")
            .with_website_url("https://superserve.ai")
    }

    /// Checks the arguments and runs the tool; also the notes that go with the result.
    async fn run(
        &self,
        tool: &Tool,
        request: CallToolRequestParams,
        progress: Option<Progress>,
    ) -> (Result<Outcome, Failure>, Vec<String>) {
        let mut checked = Args::check(tool.params, request.arguments.unwrap_or_default());
        (tool.check)(&checked.args, &mut checked.problems);
        if !checked.problems.is_empty() {
            return (Err(Failure::validation(tool.name, &checked.problems)), checked.unknown);
        }
        let call = Call {
            args: checked.args,
            client: self.client.clone(),
            progress,
            background: self.shared.background.clone(),
            screens: Arc::clone(&self.shared.screens),
        };
        let outcome = AssertUnwindSafe((tool.run)(call)).catch_unwind().await;
        // The panic itself has gone to stderr through the hook.
        (outcome.unwrap_or_else(|_| Err(Failure::unexpected())), checked.unknown)
    }
}

/// The result in protocol form.
fn result(outcome: Result<Outcome, Failure>, notes: Vec<String>, structured_images: bool) -> CallToolResult {
    let mut result = CallToolResult::default();
    match outcome {
        Ok(outcome) => {
            let structured = outcome.fault.is_none() && (structured_images || outcome.more.is_empty());
            result.content.push(ContentBlock::text(outcome.text));
            result.content.extend(outcome.more);
            result.structured_content = structured.then_some(Value::Object(outcome.structured));
            result.is_error = outcome.fault.map(|_| true);
            if !outcome.meta.is_empty() {
                result.meta.get_or_insert_default().0.extend(outcome.meta);
            }
        }
        Err(failure) => {
            result.content.push(ContentBlock::text(failure.text));
            result.is_error = Some(true);
        }
    }
    if !notes.is_empty() {
        result.content.push(ContentBlock::text(notes.join(" ")));
    }
    result
}

/// Our identity for the `_meta` of a result, for peers of the newest protocol.
fn result_meta(context: &RequestContext<RoleServer>) -> Option<MetaObject> {
    let version = context.protocol_version()?;
    if version.has_initialize() {
        return None;
    }
    let mut meta = MetaObject::new();
    let identity = serde_json::to_value(Server::identity()).expect("an identity is plain data");
    meta.insert(SERVER_INFO_KEY.to_owned(), identity);
    Some(meta)
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
            .with_server_info(Self::identity())
            .with_instructions(crate::instructions::text())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::known_up_to(&ProtocolVersion::V_2026_07_28))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let answer = self.negotiate_initialize(&request)?;
        // Later requests are read as the agreed version, not as the one the client would have liked.
        let mut peer = request;
        peer.protocol_version = answer.protocol_version.clone();
        context.peer.set_peer_info(peer);
        Ok(answer)
    }

    async fn discover(&self, _: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let versions = self.supported_protocol_versions().into_owned();
        Ok(DiscoverResult::from_server_info(versions, self.get_info())
            .with_ttl_ms(LIST_TTL_MS)
            .with_cache_scope(CacheScope::Public))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut list =
            ListToolsResult::with_all_items(self.tools.iter().map(|tool| tool.listing()).collect());
        list.meta = result_meta(&context);
        if list.meta.is_some() {
            list.ttl_ms = Some(LIST_TTL_MS);
            list.cache_scope = Some(CacheScope::Public);
        }
        Ok(list)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.tools.iter().find(|tool| tool.name == request.name) else {
            let names: Vec<&str> = self.tools.iter().map(|tool| tool.name).collect();
            let unknown: String = line(&request.name).chars().take(64).collect();
            let message = format!("Unknown tool `{unknown}`. The tools are: {}.", names.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        };
        let sandbox = request.arguments.as_ref().and_then(|arguments| arguments.get("sandbox_id"));
        let sandbox: String = line(sandbox.and_then(Value::as_str).unwrap_or("-")).chars().take(64).collect();
        let progress =
            context.meta.get_progress_token().map(|token| Progress::new(context.peer.clone(), token));
        // Whoever waits for the background waits for calls too: a cancelled one may leave something to be done there.
        let _under_way = self.shared.background.token();
        let started = Instant::now();
        let (outcome, notes) = tokio::select! {
            done = self.run(tool, request, progress) => done,
            () = context.ct.cancelled() => {
                tracing::info!(tool = tool.name, sandbox, ms = millis(started), outcome = "cancelled", "call");
                // The client has been told nothing and will be told nothing: this answer has no taker.
                return Err(ErrorData::internal_error("cancelled", None));
            }
        };
        let class = match &outcome {
            Ok(outcome) => outcome.fault.unwrap_or("ok"),
            Err(failure) => failure.class.as_str(),
        };
        tracing::info!(tool = tool.name, sandbox, ms = millis(started), outcome = class, "call");
        let mut result = result(outcome, notes, self.shared.structured_images);
        if let Some(ours) = result_meta(&context) {
            result.meta.get_or_insert_default().0.extend(ours.0);
        }
        Ok(result.into())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method: String = line(&request.method).chars().take(64).collect();
        if OWN_METHODS.contains(&method.as_str()) {
            return Err(ErrorData::invalid_params(format!("The params of `{method}` are malformed."), None));
        }
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("Unknown method `{method}`."), None))
    }
}

fn millis(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests;

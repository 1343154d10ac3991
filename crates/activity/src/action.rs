//! What can happen. The names are published: §12 of `spec/rest-api.md` for those it knows, ours for the rest.

macro_rules! actions {
    ($($(#[$doc:meta])* $variant:ident = $category:literal $name:literal;)+) => {
        /// What happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Action { $($(#[$doc])* $variant),+ }

        impl Action {
            /// Every action.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The published category.
            #[must_use]
            pub fn category(self) -> &'static str {
                match self { $(Self::$variant => $category),+ }
            }

            /// The published name, unique within its category.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

actions! {
    /// A sandbox was made.
    SandboxCreated = "sandbox" "created";
    /// Its settings were changed.
    SandboxUpdated = "sandbox" "updated";
    /// It was paused on request.
    SandboxPaused = "sandbox" "paused";
    /// It was continued.
    SandboxResumed = "sandbox" "resumed";
    /// It was removed on request.
    SandboxDeleted = "sandbox" "deleted";
    /// Its session had lasted as long as it may.
    SandboxAutoPaused = "sandbox" "auto_paused";
    /// It had been paused as long as it may.
    SandboxAutoDeleted = "sandbox" "auto_deleted";
    /// Nothing of it can be used any more.
    SandboxFailed = "sandbox" "failed";
    /// Its machine ended by itself; the disk is kept.
    MachineDied = "sandbox" "machine_died";
    /// A sandbox was saved.
    SnapshotCreated = "snapshot" "created";
    /// A saved one got another name.
    SnapshotRenamed = "snapshot" "renamed";
    /// A saved one was removed.
    SnapshotDeleted = "snapshot" "deleted";
    /// A template was made.
    TemplateCreated = "template" "created";
    /// It was removed.
    TemplateDeleted = "template" "deleted";
    /// A build of it was asked for.
    BuildStarted = "template" "build_started";
    /// A build of it ended by itself.
    BuildFinished = "template" "build_finished";
    /// A build of it was stopped on request.
    BuildCancelled = "template" "build_cancelled";
    /// A secret was stored.
    SecretCreated = "secret" "created";
    /// It got another value.
    SecretRotated = "secret" "rotated";
    /// It was deleted; no sandbox can use it any more.
    SecretDeleted = "secret" "deleted";
    /// It was bound to a sandbox.
    SecretAttached = "secret" "attached";
    /// It was taken from a sandbox.
    SecretDetached = "secret" "detached";
    /// The key that seals all secrets was replaced.
    SecretKeyRotated = "secret" "key_rotated";
    /// A command ran and its output was sent as a whole.
    ExecRun = "exec" "run";
    /// A command ran and its output was sent as it came.
    ExecStreamed = "exec" "streamed";
    /// A file, a listing or an archive was read.
    FileRead = "file" "read";
    /// A file was written.
    FileWritten = "file" "written";
    /// A session was held: a command or a terminal with input.
    Session = "session" "held";
    /// Sessions were listed, ended or otherwise looked after.
    SessionManaged = "session" "managed";
    /// A picture of the desktop was taken, or pictures were streamed.
    DesktopViewed = "desktop" "viewed";
    /// The desktop was given input, or another size.
    DesktopUsed = "desktop" "used";
    /// A new data-plane token was given out for a sandbox that runs.
    TokenRotated = "token" "rotated";
    /// A data-plane token did not open the sandbox.
    TokenRefused = "token" "refused";
    /// A port was published, or published in another way.
    PreviewPublished = "preview" "published";
    /// A port was taken back.
    PreviewUnpublished = "preview" "unpublished";
    /// A token of a private port was given out.
    PreviewTokenIssued = "preview" "token_issued";
    /// All tokens of a private port were ended.
    PreviewRotated = "preview" "rotated";
    /// An API key was made.
    KeyCreated = "key" "created";
    /// An API key was ended.
    KeyRevoked = "key" "revoked";
    /// A client was connected to a key with OAuth.
    GrantCreated = "grant" "created";
    /// Such a client renewed its tokens.
    GrantRenewed = "grant" "renewed";
    /// Such a connection ended before its time.
    GrantRevoked = "grant" "revoked";
}

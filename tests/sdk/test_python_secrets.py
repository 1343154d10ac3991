"""Secrets by the official Python SDK: what a sandbox sees of them, and what nobody sees."""

import re

import pytest
from superserve import AsyncSandbox, AsyncSecret, Provider, Sandbox, Secret
from superserve.errors import ConflictError, NotFoundError, SandboxError, ValidationError

pytestmark = pytest.mark.usefixtures("client_env")

VALUE = "planted-value-of-the-python-suite"


@pytest.fixture(scope="module")
def secret(client_env):
    made = Secret.create(name="py-prod", value=VALUE, provider="openai")
    yield made
    Secret.delete_by_name("py-prod")


@pytest.fixture(scope="module")
def sandbox(secret):
    made = Sandbox.create(name="secrets-py", secrets={"OPENAI_API_KEY": "py-prod"}, env_vars={"PLAIN": "1"})
    yield made
    made.kill()


def variable(sandbox, name: str) -> str:
    return sandbox.commands.run(f'printf %s "${name}"').stdout


def test_a_secret_is_described_without_its_value(secret):
    info = secret.get_info()
    assert (info.name, info.auth_type, info.provider_shortcut, info.hosts) == ("py-prod", "bearer", "openai", ["api.openai.com"])
    assert info.last_used_at is None and info.created_at == info.updated_at
    assert info.name in [other.name for other in Secret.list()]
    assert Secret.get("py-prod").get_info() == info
    assert VALUE not in repr(info) + repr(Secret.list())
    with pytest.raises(ConflictError):
        Secret.create(name="py-prod", value="x", provider="openai")
    with pytest.raises(NotFoundError):
        Secret.get("nothing")


def test_every_auth_type(client_env):
    for auth, config in (
        ({"type": "bearer"}, {}),
        ({"type": "basic", "username": "bot"}, {"username": "bot"}),
        ({"type": "api-key", "header": "X-Key", "prefix": "Token "}, {"header": "X-Key", "prefix": "Token "}),
        ({"type": "custom", "headers": {"X-A": "a {{ value }}"}}, {"headers": {"X-A": "a {{ value }}"}}),
        ({"per_host": [{"hosts": ["a.example.com"], "type": "bearer"}]}, None),
    ):
        made = Secret.create(name="py-auth", value=VALUE, auth=auth, hosts=["*.example.com"])
        info = made.get_info()
        assert info.auth_type == auth.get("type", "per_host") and info.hosts == ["*.example.com"]
        assert info.auth_config == (auth if config is None else config)
        made.delete()
    for bad in (
        {"provider": "nobody"},
        {"auth": {"type": "digest"}, "hosts": ["a.test"]},
        {"auth": {"type": "bearer"}},
        {"auth": {"type": "bearer"}, "hosts": ["*.com"]},
    ):
        with pytest.raises(ValidationError) as refusal:
            Secret.create(name="py-bad", value=VALUE, **bad)
        assert VALUE not in str(refusal.value)


def test_the_sandbox_sees_a_stand_in(sandbox):
    stand_in = variable(sandbox, "OPENAI_API_KEY")
    assert re.fullmatch(r"sk-proj-[A-Za-z0-9]{64}", stand_in), stand_in
    assert variable(sandbox, "PLAIN") == "1"
    binding = sandbox.get_info().secrets
    assert [(b.env_key, b.secret_name, b.revoked) for b in binding] == [("OPENAI_API_KEY", "py-prod", None)]
    found = sandbox.commands.run(f"cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c {VALUE[:12]}").stdout
    assert found.strip() in ("0", "1"), "no process but the one that looks has it"


def test_attach_and_detach(sandbox, secret):
    sandbox.attach_secret("SECOND", "py-prod")
    second = variable(sandbox, "SECOND")
    assert second.startswith("sk-proj-") and second != variable(sandbox, "OPENAI_API_KEY")
    assert {b.env_key for b in secret.get_sandboxes()} == {"OPENAI_API_KEY", "SECOND"}
    assert {b.sandbox_id for b in secret.get_sandboxes()} == {sandbox.id}
    with pytest.raises(ConflictError):
        sandbox.attach_secret("SECOND", "py-prod")
    with pytest.raises(ValidationError):
        sandbox.attach_secret("THIRD", "nothing")
    with pytest.raises(ValidationError):
        sandbox.attach_secret("PLAIN", "py-prod")
    sandbox.detach_secret("SECOND")
    assert variable(sandbox, "SECOND") == ""
    with pytest.raises((NotFoundError, SandboxError)):
        sandbox.detach_secret("SECOND")


def test_paused_it_is_applied_at_the_resume(sandbox):
    sandbox.pause(wait=True)
    sandbox.attach_secret("LATER", "py-prod")
    assert sandbox.get_info().status == "paused"
    assert variable(sandbox, "LATER").startswith("sk-proj-")
    sandbox.detach_secret("LATER")


def test_rotation_keeps_the_stand_in(sandbox, secret):
    before = variable(sandbox, "OPENAI_API_KEY")
    secret.rotate(VALUE + "-2")
    info = secret.get_info()
    assert info.updated_at > info.created_at
    assert variable(sandbox, "OPENAI_API_KEY") == before
    assert secret.get_audit() == []
    assert secret.get_audit(status="errors", limit=10) == []


def test_a_deleted_secret_revokes_and_its_name_does_not_revive(client_env):
    Secret.create(name="py-gone", value=VALUE, auth={"type": "bearer"}, hosts=["a.example.com"])
    sandbox = Sandbox.create(name="revoked", secrets={"KEY": "py-gone"})
    try:
        assert re.fullmatch(r"ssrv_proxy_[A-Za-z0-9_-]{43}", variable(sandbox, "KEY"))
        Secret.delete_by_name("py-gone")
        Secret.delete_by_name("py-gone")
        assert sandbox.get_info().secrets[0].revoked is True
        again = Secret.create(name="py-gone", value=VALUE, auth={"type": "bearer"}, hosts=["a.example.com"])
        assert sandbox.get_info().secrets[0].revoked is True
        assert again.get_sandboxes() == []
        again.delete()
    finally:
        sandbox.kill()
    with pytest.raises(ValidationError):
        Sandbox.create(name="none", secrets={"KEY": "py-gone"})


def test_providers(client_env):
    providers = {provider.name: provider for provider in Provider.list()}
    assert len(providers) == 19 and list(providers) == sorted(providers)
    assert providers["anthropic"].token_shape == "sk-ant-api03-..."
    assert providers["github"].auth_type == "per_host" and providers["github"].hosts == ["api.github.com", "github.com"]


async def test_the_asynchronous_half(client_env):
    secret = await AsyncSecret.create(name="py-async", value=VALUE, provider="github")
    sandbox = await AsyncSandbox.create(name="secrets-async", secrets={"GITHUB_TOKEN": "py-async"})
    try:
        done = await sandbox.commands.run('printf %s "$GITHUB_TOKEN"')
        assert re.fullmatch(r"ghp_[A-Za-z0-9]{36}", done.stdout)
        assert [b.env_key for b in await secret.get_sandboxes()] == ["GITHUB_TOKEN"]
    finally:
        await sandbox.kill()
        await secret.delete()

-- Which isolation engine a sandbox runs on, for life: its disk is for no other. Until now there were containers, or, in a
-- state directory of its own, virtual machines, which the first start says (Store::sandbox_engine_of_all).
ALTER TABLE sandboxes ADD COLUMN engine TEXT NOT NULL DEFAULT 'container';
-- What the sandbox ran on that was saved.
ALTER TABLE snapshots ADD COLUMN engine TEXT NOT NULL DEFAULT 'container';
-- What sandboxes of a template run on; unset, on what the server says when one is made.
ALTER TABLE templates ADD COLUMN engine TEXT;

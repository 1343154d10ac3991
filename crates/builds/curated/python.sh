# Runs as root inside the new system, after its packages were installed: Python as the official images have it.
set -eu
ln -sf python3 /usr/bin/python
install -d -m 0755 /home/user /app
# The whole machine belongs to the caller: pip may install into the system.
printf '[global]\nbreak-system-packages = true\nroot-user-action = ignore\ndisable-pip-version-check = true\n' >/etc/pip.conf

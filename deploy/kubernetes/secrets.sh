#!/bin/sh
# New random passwords and keys as Secrets, for an installation with its own Valkey (overlays cpu and gpu):
#   sh deploy/kubernetes/secrets.sh | kubectl apply -n headrace -f -
# Once: run again it makes others, and Valkey, gateways and workers must be restarted together.
# The first API key goes to stderr and is nowhere else; of it only the SHA-256 is stored.
set -eu
here=$(dirname "$0")

random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

gateway=$(random) worker=$(random) ops=$(random) operator=$(random) api_key=hr-$(random)
users=$(sed -e "s/GATEWAY_PASSWORD/$gateway/" -e "s/WORKER_PASSWORD/$worker/" -e "s/OPS_PASSWORD/$ops/" \
  -e 's/^/    /' "$here/../redis/users.acl")
digest=$(printf %s "$api_key" | sha256sum | cut -d ' ' -f 1)

cat <<END
apiVersion: v1
kind: Secret
metadata:
  name: headrace-valkey
stringData:
  ops-password: "$ops"
  users.acl: |
$users
---
apiVersion: v1
kind: Secret
metadata:
  name: headrace-gateway
stringData:
  redis-url: "redis://gateway:$gateway@headrace-valkey:6379/0"
  operator-key: "$operator"
---
apiVersion: v1
kind: Secret
metadata:
  name: headrace-worker
stringData:
  redis-url: "redis://worker:$worker@headrace-valkey:6379/0"
---
apiVersion: v1
kind: Secret
metadata:
  name: headrace-api-keys
stringData:
  keys.toml: |
    [[keys]]
    sha256 = "$digest"
    tenant = "default"
END
echo "API key (tenant default): $api_key" >&2

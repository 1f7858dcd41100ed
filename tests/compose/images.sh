#!/bin/sh
# Stand-ins for the two base images, where no image registry is reachable: root, debootstrap and a Docker engine.
# They carry this machine's certificates and pip's settings; never ship what is built on them.
# usage: images.sh FOLDER VALKEY_SERVER [PIP_FIND_LINKS]   (MIRROR=URL of Debian packages)
set -eu
folder=$1 valkey=$2 find_links=${3:-}
python_image=${PYTHON_IMAGE:-python:3.11-slim-bookworm}
valkey_image=${VALKEY_IMAGE:-valkey/valkey:9.0-bookworm}
root=$folder/root

if [ ! -d "$root" ]; then
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,redis-tools bookworm "$root" ${MIRROR:-}
fi
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
ln -sf python3 "$root/usr/bin/python"
tar -C "$root" --exclude=./var/cache/apt/archives/*.deb --exclude=./proc/* --exclude=./sys/* -c . | docker import \
  -c "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_FIND_LINKS=$find_links PIP_DEFAULT_TIMEOUT=180" - "$python_image"

mkdir -p "$folder/valkey"
cp "$valkey" "$folder/valkey/valkey-server"
cat > "$folder/valkey/Dockerfile" <<EOF
FROM $python_image
COPY valkey-server /usr/local/bin/valkey-server
RUN ln -sf /usr/bin/redis-cli /usr/local/bin/valkey-cli && useradd --uid 999 valkey ; install -d -o 999 /data
WORKDIR /data
VOLUME /data
EOF
docker build --network host --tag "$valkey_image" "$folder/valkey"

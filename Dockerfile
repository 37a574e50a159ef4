# The gateway and its simulated workers: the static binary that `make build` left
# in bin, the roots by which it trusts TLS peers, and a folder that it may write
# to. There is no base image and no RUN, so it builds without a registry and
# without BuildKit. deploy/image/source.Dockerfile compiles in a container instead.
#
#   make build && docker build -t tandem-gateway:local .
FROM scratch
COPY bin/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --chown=65532:65532 bin/data /data
COPY LICENSE bin/gateway /
# A scratch image has no /tmp; what is temporary goes where writing is allowed.
ENV TMPDIR=/data
WORKDIR /data
USER 65532:65532
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 CMD ["/gateway", "health", "--timeout", "2s"]
ENTRYPOINT ["/gateway"]
CMD ["serve", "--http-host", "0.0.0.0"]

/* Two words for lanes whose bytes and floats stand in the same order, with nothing to gain from another. */
#ifndef GGUFX_LANES_IN_ORDER_H
#define GGUFX_LANES_IN_ORDER_H

/* Signed codes * d; unsigned codes * d - m as product_less has it. */
INLINE void store_scaled_bfloats(uint16_t *p, bytes codes, floats d, int past_cache) {
    store_bfloats(p, multiply(from_signed(codes), d), past_cache);
}
INLINE void store_affine_bfloats(uint16_t *p, bytes codes, floats d, floats m, int past_cache) {
    store_bfloats(p, product_less(from_unsigned(codes), d, m), past_cache);
}

#endif
